// A training gives the same bits whether its ranks exchange through loopback,
// shared memory or Gloo.
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fsdp/config/text_config.h"
#include "gtest/gtest.h"
#include "kernels/collective/test_ranks.h"
#include "kernels/status_macros.h"
#include "tests/harness/training_run.h"

namespace shardgraph {
namespace {

// Odd sizes, dropout, clipping, several micro-batches with masked targets.
TrainConfig Config(const std::string& model, int world_size,
                   const std::vector<std::string>& overrides) {
  const std::string text = absl::StrCat("model { ", model, R"( }
    optimizer { learning_rate: 1e-2 max_gradient_norm: 0.5 }
    schedule { kind: CONSTANT }
    precision { compute: FP32 }
    data { batch_size: 12 sequence_length: 16 micro_batch_size: )",
                                        12 / world_size / 3, R"( }
    run { steps: 5 seed: 7 })");
  TrainConfig config;
  SG_CHECK_OK(ParseTextConfig(text, "test", &config));
  for (const std::string& assignment : overrides)
    SG_CHECK_OK(ApplyOverride(assignment, &config));
  return config;
}

constexpr char kGpt2[] =
    "gpt2 { vocab_size: 131 n_positions: 16 n_embd: 36 n_layer: 5 n_head: 3 "
    "resid_pdrop: 0.1 embd_pdrop: 0.1 attn_pdrop: 0.1 }";
constexpr char kLlama[] =
    "llama { vocab_size: 131 hidden_size: 36 intermediate_size: 50 "
    "num_hidden_layers: 5 num_attention_heads: 6 num_key_value_heads: 2 "
    "max_position_embeddings: 16 }";

template <typename T>
void AppendBytes(const std::vector<T>& values, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(values.data()),
                values.size() * sizeof(T));
}

// What one rank ends with, bit for bit. Losses and norms are those of all
// ranks, weights and gradients this rank's shards.
struct RankBits {
  std::string losses, norms, weights, gradients;
};

constexpr size_t kSteps = 5, kLossBytes = kSteps * sizeof(double);

std::string BitsOf(const TrainingRunResult& result) {
  std::string bits;
  AppendBytes(result.losses, &bits);
  AppendBytes(result.gradient_norms, &bits);
  for (const auto& [name, values] : result.weights) AppendBytes(values, &bits);
  for (const auto& [name, values] : result.gradients)
    AppendBytes(values, &bits);
  return bits;
}

std::vector<RankBits> Train(TestTransport transport, int world_size,
                            const std::string& model,
                            const std::vector<std::string>& overrides) {
  const std::vector<RankResult> ranks =
      RunRanks(transport, world_size, absl::Seconds(120),
               [&](TestRank& rank) -> absl::StatusOr<std::string> {
                 SG_ASSIGN_OR_RETURN(
                     const TrainingRunResult result,
                     RunTrainingRank(Config(model, world_size, overrides), {},
                                     rank.factory()));
                 if (result.losses.back() >= result.losses.front())
                   return absl::InternalError("it learns nothing");
                 return BitsOf(result);
               });
  std::vector<RankBits> bits;
  for (const RankResult& rank : ranks) {
    EXPECT_TRUE(rank.status.ok()) << rank.status;
    const absl::string_view text = rank.output;
    if (!rank.status.ok() || text.size() < 2 * kLossBytes) return {};
    const size_t half = (text.size() - 2 * kLossBytes) / 2;
    bits.push_back({std::string(text.substr(0, kLossBytes)),
                    std::string(text.substr(kLossBytes, kLossBytes)),
                    std::string(text.substr(2 * kLossBytes, half)),
                    std::string(text.substr(2 * kLossBytes + half))});
  }
  return bits;
}

// Ranks in groups of `shards` end with the same bits on every transport.
void ExpectTheSameBits(const std::string& model, int world_size, int shards,
                       const std::vector<std::string>& overrides) {
  const std::vector<RankBits> loopback =
      Train(TestTransport::kLoopback, world_size, model, overrides);
  ASSERT_EQ(loopback.size(), static_cast<size_t>(world_size));
  for (int rank = 1; rank < world_size; ++rank) {
    EXPECT_EQ(loopback[rank].losses, loopback[0].losses);
    EXPECT_EQ(loopback[rank].norms, loopback[0].norms);
    // Other shards, or replicas.
    EXPECT_EQ(loopback[rank].weights == loopback[0].weights,
              rank % shards == 0);
  }
  for (const auto& [name, transport] :
       {std::pair{"shared memory", TestTransport::kSharedMemory},
        std::pair{"Gloo", TestTransport::kGloo}}) {
    const std::vector<RankBits> ranks =
        Train(transport, world_size, model, overrides);
    ASSERT_EQ(ranks.size(), loopback.size()) << name;
    for (int rank = 0; rank < world_size; ++rank) {
      SCOPED_TRACE(absl::StrCat(name, ", rank ", rank));
      // EXPECT_TRUE: the texts are not for people.
      EXPECT_TRUE(ranks[rank].losses == loopback[rank].losses);
      EXPECT_TRUE(ranks[rank].norms == loopback[rank].norms);
      EXPECT_TRUE(ranks[rank].weights == loopback[rank].weights);
      EXPECT_TRUE(ranks[rank].gradients == loopback[rank].gradients);
    }
  }
}

class Transports
    : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(Transports, GiveTheSameBits) {
  const auto [model, world_size] = GetParam();
  ExpectTheSameBits(model, world_size, world_size, {});
}

TEST(TransportsOfStrategies, GiveTheSameBits) {
  ExpectTheSameBits(kGpt2, 4, 2,
                    {"shard.strategy=HYBRID", "shard.shard_group_size=2"});
  ExpectTheSameBits(kGpt2, 2, 1, {"shard.strategy=NO_SHARD"});
  ExpectTheSameBits(kLlama, 2, 2, {"shard.strategy=ZERO1"});
}

INSTANTIATE_TEST_SUITE_P(Models, Transports,
                         ::testing::Combine(::testing::Values(kGpt2, kLlama),
                                            ::testing::Values(2, 3)),
                         [](const auto& info) {
                           return absl::StrCat(
                               info.index < 2 ? "Gpt2" : "Llama", "World",
                               std::get<1>(info.param));
                         });

}  // namespace
}  // namespace shardgraph
