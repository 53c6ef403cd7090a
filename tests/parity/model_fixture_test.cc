// Models against PyTorch's: logits, losses and gradients of the fixtures'
// models, computed in program order: in FP64 by the reference kernels, in FP32
// and BF16 by those and by the kernels of the CPU backend.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/checkpoint/safetensors.h"
#include "graph/autodiff.h"
#include "graph/model/module.h"
#include "graph/model/testing/model_text.h"
#include "graph/model/testing/plain_parameters.h"
#include "graph/testing/interpreter.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/kernels.h"
#include "kernels/step_state.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

using Elements = std::vector<double>;

constexpr int64_t kBatch = 3;
constexpr int64_t kLength = 24;
constexpr int64_t kVocab = 131;

struct FixtureModel {
  const char* name;
  const char* spec;
  // Rotary angles are FP32 numbers in every dtype (kernels/embedding), those of
  // the fixtures FP64: what that may change, relatively.
  double fp64_tolerance;
};

const FixtureModel kModels[] = {
    {"gpt2_tied",
     "gpt2 { vocab_size: 131 n_positions: 32 n_embd: 48 n_head: 4 n_layer: 3 }",
     1e-12},
    {"gpt2_untied",
     "gpt2 { vocab_size: 131 n_positions: 32 n_embd: 36 n_head: 3 n_layer: 2 "
     "tie_word_embeddings: false }",
     1e-12},
    {"llama_gqa_untied",
     "llama { vocab_size: 131 hidden_size: 48 intermediate_size: 100 "
     "num_hidden_layers: 3 num_attention_heads: 6 num_key_value_heads: 2 "
     "max_position_embeddings: 32 rms_norm_eps: 1e-5 }",
     1e-6},
    {"llama_tied",
     "llama { vocab_size: 131 hidden_size: 64 intermediate_size: 96 "
     "num_hidden_layers: 2 num_attention_heads: 4 num_key_value_heads: 2 "
     "head_dim: 16 max_position_embeddings: 32 rms_norm_eps: 1e-5 "
     "tie_word_embeddings: true }",
     1e-6},
};

template <typename T>
void AppendElements(absl::string_view data, Elements* elements) {
  for (size_t at = 0; at < data.size(); at += sizeof(T)) {
    T element;
    std::memcpy(&element, data.data() + at, sizeof(T));
    elements->push_back(static_cast<double>(element));
  }
}

std::map<std::string, Elements> ReadTensors(const std::string& path) {
  const auto file = SafetensorsFile::Open("tests/fixtures/" + path);
  SG_CHECK(file.ok()) << file.status().ToString();
  std::map<std::string, Elements> tensors;
  for (const SafetensorsEntry& entry : (*file)->entries()) {
    Elements& elements = tensors[entry.name];
    const absl::string_view data = (*file)->Data(entry);
    switch (entry.dtype.value()) {
      case DType::kF32:
        AppendElements<float>(data, &elements);
        break;
      case DType::kF64:
        AppendElements<double>(data, &elements);
        break;
      case DType::kI32:
        AppendElements<int32_t>(data, &elements);
        break;
      default:
        SG_CHECK(false) << entry.name << " is " << entry.dtype_name;
    }
  }
  return tensors;
}

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file("tests/fixtures/" + path);
  return nlohmann::json::parse(file);
}

// Weights by our names: a file may lack the prefix and hold attention masks.
std::map<std::string, Elements> ReadWeights(const std::string& model) {
  std::map<std::string, Elements> weights;
  for (auto& [name, elements] : ReadTensors(model + "/model.safetensors")) {
    if (absl::EndsWith(name, ".attn.bias")) continue;
    const bool bare = absl::StartsWith(model, "gpt2") &&
                      !absl::StartsWith(name, "transformer.") &&
                      !absl::StartsWith(name, "lm_head.");
    weights[absl::StrCat(bare ? "transformer." : "", name)] =
        std::move(elements);
  }
  return weights;
}

// A fixture's model with its weights, ready to run phases of.
class FixtureRun {
 public:
  FixtureRun(const FixtureModel& fixture, const KernelTable& kernels,
             DType dtype, bool stacked)
      : dtype_(dtype),
        model_(ModelFromText(fixture.spec)),
        builder_(&graph_),
        parameters_(builder_, *model_, dtype, stacked),
        interpreter_(graph_, kernels) {
    const std::map<std::string, Elements> weights = ReadWeights(fixture.name);
    EXPECT_EQ(weights.size(), model_->parameters().size());
    for (const Parameter* parameter : model_->parameters()) {
      interpreter_.Write(parameters_.Get(*parameter),
                         weights.at(parameter->name));
    }
  }

  ForwardResult Emit(const std::string& phase, ForwardOptions options) {
    builder_.SetPhase(phase);
    options.compute = dtype_;
    const auto result = model_->Emit(builder_, parameters_, options);
    SG_CHECK(result.ok()) << result.status().ToString();
    return *result;
  }

  void Write(const std::string& input, const Elements& elements) {
    interpreter_.Write(graph_.inputs.at(input), elements);
  }
  void WritePosition(int64_t position) {
    interpreter_.Write(builder_.StateField(offsetof(StepState, position),
                                           TensorType(DType::kI64, {})),
                       {static_cast<double>(position)});
  }
  void Run(const std::string& phase) {
    const absl::Status status = interpreter_.Run(phase);
    SG_CHECK(status.ok()) << status.ToString();
  }
  Elements Read(ValueId value) { return interpreter_.Read(value); }

  // Gradient of the mean loss by parameter name; appends backward to the
  // current phase. Run the phase before reading.
  std::map<std::string, ValueId> Differentiate() {
    std::map<std::string, ValueId> gradients;
    DifferentiateOptions options;
    for (const Parameter* parameter : model_->parameters()) {
      options.leaves.push_back(
          {parameters_.Get(*parameter), [&gradients, parameter](ValueId g) {
             gradients[parameter->name] = g;
           }});
    }
    const absl::Status status = shardgraph::Differentiate(builder_, options);
    SG_CHECK(status.ok()) << status.ToString();
    return gradients;
  }

 private:
  DType dtype_;
  std::unique_ptr<Model> model_;
  Graph graph_;
  GraphBuilder builder_;
  PlainParameters parameters_;
  Interpreter interpreter_;
};

double Norm(const Elements& a) {
  double sum = 0;
  for (const double x : a) sum += x * x;
  return std::sqrt(sum);
}

Elements Difference(const Elements& a, const Elements& b) {
  EXPECT_EQ(a.size(), b.size());
  Elements d(a.size());
  for (size_t i = 0; i < a.size(); ++i) d[i] = a[i] - b[i];
  return d;
}

double Cosine(const Elements& a, const Elements& b) {
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += a[i] * b[i];
  return dot / (Norm(a) * Norm(b));
}

struct Kernels {
  const char* name;
  const KernelTable& (*table)();
};

const Kernels kKernels[] = {{"reference", ReferenceKernels},
                            {"cpu", CpuKernels}};

class ModelFixtureTest : public ::testing::TestWithParam<FixtureModel> {};

// The loss and the gradient of every parameter, in `dtype`.
struct LossAndGradients {
  double loss = 0;
  std::map<std::string, Elements> gradients;
};

LossAndGradients ComputeGradients(const FixtureModel& fixture,
                                  const KernelTable& kernels, DType dtype,
                                  bool stacked) {
  const std::map<std::string, Elements> tokens =
      ReadTensors("tokens.safetensors");
  FixtureRun run(fixture, kernels, dtype, stacked);
  const ForwardResult forward =
      run.Emit("eval", {.mode = ForwardMode::kEvaluate,
                        .batch = kBatch,
                        .length = kLength,
                        .loss_chunk_rows = 17});
  run.Emit("micro", {.mode = ForwardMode::kEvaluate,
                     .batch = kBatch,
                     .length = kLength,
                     .loss_chunk_rows = 17});
  const std::map<std::string, ValueId> gradients = run.Differentiate();
  run.Write("tokens", tokens.at("gradient.inputs"));
  run.Write("targets", tokens.at("gradient.targets"));
  run.WritePosition(0);
  run.Run("eval");
  const Elements stats = run.Read(forward.stats);
  run.Run("micro");

  LossAndGradients result;
  result.loss = stats[0] / stats[1];
  for (const auto& [name, value] : gradients) {
    Elements& elements = result.gradients[name];
    elements = run.Read(value);
    for (double& x : elements) x /= stats[1];
  }
  return result;
}

// Leaves out the elements whose gradient is zero in exact arithmetic.
Elements WithoutKeyBias(const nlohmann::json& expected, const std::string& name,
                        Elements elements) {
  for (const nlohmann::json& bias : expected["key_biases"]) {
    if (bias["name"] != name) continue;
    elements.erase(elements.begin() + bias["begin"].get<int64_t>(),
                   elements.begin() + bias["end"].get<int64_t>());
  }
  return elements;
}

TEST_P(ModelFixtureTest, Fp64IsTheTruth) {
  const FixtureModel& fixture = GetParam();
  const nlohmann::json expected =
      ReadJson(absl::StrCat(fixture.name, "/expected.json"));
  const std::map<std::string, Elements> truth =
      ReadTensors(absl::StrCat(fixture.name, "/expected.safetensors"));
  const double loss = expected["gradient"]["loss_fp64"];
  const double norm = expected["gradient"]["norm_fp64"];
  for (const bool stacked : {true, false}) {
    const LossAndGradients ours =
        ComputeGradients(fixture, ReferenceKernels(), DType::kF64, stacked);
    EXPECT_NEAR(ours.loss, loss, fixture.fp64_tolerance * loss);
    for (const auto& [name, gradient] : ours.gradients) {
      EXPECT_LE(Norm(Difference(gradient, truth.at("gradient/" + name))),
                fixture.fp64_tolerance * norm)
          << name << (stacked ? " stacked" : "");
    }
  }
}

// The largest of the elements that WithoutKeyBias leaves out; 0 without any.
double KeyBiasMax(const nlohmann::json& expected, const std::string& name,
                  const Elements& elements) {
  double largest = 0;
  for (const nlohmann::json& bias : expected["key_biases"]) {
    if (bias["name"] != name) continue;
    for (int64_t i = bias["begin"]; i < bias["end"]; ++i) {
      largest = std::max(largest, std::abs(elements[i]));
    }
  }
  return largest;
}

TEST_P(ModelFixtureTest, Fp32IsAsGoodAsTorchs) {
  const FixtureModel& fixture = GetParam();
  const nlohmann::json expected =
      ReadJson(absl::StrCat(fixture.name, "/expected.json"));
  const nlohmann::json& gradient = expected["gradient"];
  const std::map<std::string, Elements> truth =
      ReadTensors(absl::StrCat(fixture.name, "/expected.safetensors"));
  const double global = gradient["norm_fp64"];
  for (const Kernels& kernels : kKernels) {
    const LossAndGradients ours =
        ComputeGradients(fixture, kernels.table(), DType::kF32, true);
    EXPECT_NEAR(ours.loss, gradient["loss_fp64"].get<double>(), 1e-6);
    for (const auto& [name, values] : ours.gradients) {
      const nlohmann::json& torch = gradient["tensors"][name];
      const Elements a = WithoutKeyBias(expected, name, values);
      const Elements b =
          WithoutKeyBias(expected, name, truth.at("gradient/" + name));
      EXPECT_LE(
          Norm(Difference(a, b)),
          3 * torch["fp32"]["error_norm"].get<double>() +
              1e-6 * std::max(torch["norm_fp64"].get<double>(), 1e-3 * global))
          << kernels.name << " " << name;
      EXPECT_LE(KeyBiasMax(expected, name, values), 1e-7 * global)
          << kernels.name << " " << name;
    }
  }
}

TEST_P(ModelFixtureTest, Bf16RoundsWhereTorchDoes) {
  const FixtureModel& fixture = GetParam();
  const nlohmann::json expected =
      ReadJson(absl::StrCat(fixture.name, "/expected.json"));
  const nlohmann::json& gradient = expected["gradient"];
  const std::map<std::string, Elements> truth =
      ReadTensors(absl::StrCat(fixture.name, "/expected.safetensors"));
  const double loss = gradient["loss_fp64"];
  const double torch_error =
      std::abs(gradient["loss_bf16"].get<double>() - loss);
  for (const Kernels& kernels : kKernels) {
    const LossAndGradients ours =
        ComputeGradients(fixture, kernels.table(), DType::kBF16, true);
    EXPECT_NEAR(ours.loss, loss, 2 * torch_error + 0.005);
    for (const auto& [name, values] : ours.gradients) {
      const nlohmann::json& torch = gradient["tensors"][name];
      const Elements a = WithoutKeyBias(expected, name, values);
      const Elements b =
          WithoutKeyBias(expected, name, truth.at("gradient/" + name));
      EXPECT_GE(Cosine(a, b), 0.9995) << kernels.name << " " << name;
      EXPECT_LE(
          Norm(Difference(a, b)) / Norm(b),
          std::max(1.5 * torch["bf16"]["relative_error"].get<double>(), 2e-2))
          << kernels.name << " " << name;
    }
  }
}

// Ten tokens at once, the others one by one: every step's logits, each within
// `tolerance` of its row's norm.
void ExpectGeneratedLogits(const FixtureModel& fixture,
                           const KernelTable& kernels, DType dtype,
                           double tolerance) {
  const Elements logits =
      ReadTensors(absl::StrCat(fixture.name, "/expected.safetensors"))
          .at("logits");
  const Elements inputs =
      ReadTensors("tokens.safetensors").at("gradient.inputs");
  constexpr int64_t kPrefill = 10;
  FixtureRun run(fixture, kernels, dtype, true);
  ForwardOptions options = {.mode = ForwardMode::kGenerate,
                            .length = kPrefill,
                            .cache_length = 32,
                            .input_prefix = "prefill/"};
  const ForwardResult prefill = run.Emit("prefill", options);
  options.length = 1;
  options.input_prefix = "decode/";
  const ForwardResult decode = run.Emit("decode", options);
  const auto expect_row = [&](int64_t row, ValueId value) {
    const Elements expected(logits.begin() + row * kVocab,
                            logits.begin() + (row + 1) * kVocab);
    EXPECT_LE(Norm(Difference(run.Read(value), expected)),
              tolerance * Norm(expected))
        << "row " << row;
  };
  run.WritePosition(0);
  run.Write("prefill/tokens",
            Elements(inputs.begin(), inputs.begin() + kPrefill));
  // Any row of the prompt may be asked for.
  for (const int64_t row : {int64_t{3}, kPrefill - 1}) {
    run.Write("prefill/last_rows", {static_cast<double>(row)});
    run.Run("prefill");
    expect_row(row, prefill.logits);
  }
  run.Write("decode/last_rows", {0});
  for (int64_t position = kPrefill; position < kLength; ++position) {
    run.WritePosition(position);
    run.Write("decode/tokens", {inputs[position]});
    run.Run("decode");
    expect_row(position, decode.logits);
  }
}

TEST_P(ModelFixtureTest, GenerationGivesTheLogitsOfTheWholeSequence) {
  const FixtureModel& fixture = GetParam();
  ExpectGeneratedLogits(fixture, ReferenceKernels(), DType::kF64,
                        fixture.fp64_tolerance);
  ExpectGeneratedLogits(fixture, CpuKernels(), DType::kF32, 1e-5);
  ExpectGeneratedLogits(fixture, CpuKernels(), DType::kBF16, 3e-2);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelFixtureTest,
                         ::testing::ValuesIn(kModels), [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace shardgraph
