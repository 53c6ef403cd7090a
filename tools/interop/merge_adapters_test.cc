#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/model/testing/model_text.h"
#include "gtest/gtest.h"
#include "tools/interop/adapters.h"

namespace shardgraph {
namespace {

// Element i of tensor t is (7 t + i) % 5 - 2.
class SmallIntegers : public WeightSource {
 public:
  explicit SmallIntegers(const Model& model) {
    for (const Parameter* parameter : model.parameters())
      tensors_.push_back({parameter->name, DType::kF32, parameter->shape});
  }
  static float Value(size_t tensor, int64_t i) {
    return static_cast<float>((7 * tensor + i) % 5) - 2;
  }
  absl::Span<const SafetensorsWriter::Tensor> tensors() const override {
    return tensors_;
  }
  absl::Status Read(size_t tensor, int64_t begin,
                    absl::Span<char> bytes) override {
    for (size_t i = 0; i < bytes.size() / 4; ++i) {
      const float value = Value(tensor, begin + i);
      std::memcpy(&bytes[4 * i], &value, 4);
    }
    return absl::OkStatus();
  }

 private:
  std::vector<SafetensorsWriter::Tensor> tensors_;
};

struct Case {
  const char* model;
  const char* linear;  // a module with an adapter
  bool input_major;
};

TEST(MergeAdapters, AddsTheProductToTheWeight) {
  for (const Case& c :
       {Case{"gpt2 { vocab_size: 11 n_positions: 4 n_embd: 6 n_layer: 1 "
             "n_head: 2 } lora { modules: '.*c_attn' rank: 2 alpha: 6 }",
             "transformer.h.0.attn.c_attn", true},
        Case{"llama { vocab_size: 11 hidden_size: 8 intermediate_size: 9 "
             "num_hidden_layers: 1 num_attention_heads: 2 } "
             "lora { modules: '.*(q_proj|down_proj)' rank: 2 alpha: 6 }",
             "model.layers.0.mlp.down_proj", false}}) {
    SCOPED_TRACE(c.linear);
    ModelWeights weights;
    *weights.config.mutable_model() = ModelSpecFromText(c.model);
    weights.model = *MakeModel(weights.config.model());
    const std::unique_ptr<Model> before = *MakeModel(weights.config.model());
    weights.source = std::make_unique<SmallIntegers>(*before);
    ASSERT_TRUE(MergeAdapters(&weights).ok());
    EXPECT_FALSE(weights.config.model().has_lora());
    const auto tensors = weights.source->tensors();
    ASSERT_EQ(tensors.size(), weights.model->parameters().size());
    const auto index = [&](const std::string& name) {
      size_t i = 0;
      while (before->parameters()[i]->name != name) ++i;
      return i;
    };
    const std::string linear = c.linear;
    const size_t a = index(linear + ".lora_A.weight"),
                 b = index(linear + ".lora_B.weight");
    for (size_t t = 0; t < tensors.size(); ++t) {
      ASSERT_EQ(tensors[t].name, weights.model->parameters()[t]->name);
      // In two pieces.
      const int64_t n = NumElements(tensors[t].shape), first = n / 3;
      std::vector<float> values(n);
      const absl::Span<char> bytes(reinterpret_cast<char*>(values.data()),
                                   4 * n);
      ASSERT_TRUE(weights.source->Read(t, 0, bytes.subspan(0, 4 * first)).ok());
      ASSERT_TRUE(
          weights.source->Read(t, first, bytes.subspan(4 * first)).ok());
      const size_t old = index(std::string(tensors[t].name));
      const bool merged = tensors[t].name == linear + ".weight";
      const int64_t inputs = before->parameters()[a]->shape[1];
      for (int64_t i = 0; i < n; ++i) {
        float wanted = SmallIntegers::Value(old, i);
        if (merged) {
          int64_t out = i / tensors[t].shape[1], in = i % tensors[t].shape[1];
          if (c.input_major) std::swap(out, in);
          for (int64_t r = 0; r < 2; ++r) {
            wanted += 3 * SmallIntegers::Value(b, out * 2 + r) *
                      SmallIntegers::Value(a, r * inputs + in);
          }
        }
        if (tensors[t].name.find("q_proj") != std::string::npos) continue;
        ASSERT_EQ(values[i], wanted) << tensors[t].name << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace shardgraph
