#include "tests/parity/parity.h"

#include "fsdp/config/text_config.h"
#include "gtest/gtest.h"
#include "kernels/status_macros.h"

namespace shardgraph {

const char kParityGpt2[] =
    "gpt2 { vocab_size: 131 n_positions: 16 n_embd: 36 n_layer: 5 n_head: 3 "
    "resid_pdrop: 0.1 embd_pdrop: 0.1 attn_pdrop: 0.1 "
    "initializer_range: 0.15 }";
const char kParityLlama[] =
    "llama { vocab_size: 131 hidden_size: 36 intermediate_size: 50 "
    "num_hidden_layers: 5 num_attention_heads: 6 num_key_value_heads: 2 "
    "max_position_embeddings: 16 attention_dropout: 0.1 "
    "initializer_range: 0.15 }";

TrainConfig ParityConfig(const std::string& model, int64_t micro_batch_size,
                         const std::vector<std::string>& overrides) {
  TrainConfig config;
  const std::string text = "model { " + model + R"( }
    optimizer { kind: SGD learning_rate: 0.1 weight_decay: 0 max_gradient_norm: 0 }
    schedule { kind: CONSTANT }
    precision { compute: FP32 }
    data { batch_size: 12 sequence_length: 16 }
    run { steps: 20 seed: 7 }
  )";
  SG_CHECK_OK(ParseTextConfig(text, "test", &config));
  config.mutable_data()->set_micro_batch_size(micro_batch_size);
  for (const std::string& assignment : overrides)
    SG_CHECK_OK(ApplyOverride(assignment, &config));
  return config;
}

void ExpectSame(const TrainingRunResult& run, const TrainingRunResult& one) {
  ASSERT_EQ(run.losses.size(), one.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(run.losses[i], one.losses[i], 1e-5) << "step " << i;
  for (const auto& [name, weights] : one.weights) {
    std::vector<float> update = weights, update_of_run = run.weights.at(name);
    for (size_t i = 0; i < update.size(); ++i) {
      update[i] -= one.initial.at(name)[i];
      update_of_run[i] -= run.initial.at(name)[i];
    }
    EXPECT_EQ(run.initial.at(name), one.initial.at(name)) << name;
    EXPECT_LE(RelativeDifference(update_of_run, update), 1e-4) << name;
  }
}

}  // namespace shardgraph
