// Models against PyTorch's: logits, losses and gradients of the fixtures'
// models, computed in program order: in FP64 by the reference kernels, in FP32
// and BF16 by those and by the kernels of the CPU backend.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
#include "tests/harness/fixture_models.h"

namespace shardgraph {
namespace {

using Elements = std::vector<double>;

constexpr int64_t kBatch = 3;
constexpr int64_t kLength = 24;
constexpr int64_t kVocab = 131;

// Rotary angles are FP32 numbers in every dtype (kernels/embedding), those of
// the fixtures FP64: what that may change, relatively.
double Fp64Tolerance(const FixtureModel& fixture) {
  return absl::StartsWith(fixture.name, "llama") ? 1e-6 : 1e-12;
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
    const std::map<std::string, Elements> weights =
        ReadFixtureWeights(fixture.name);
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
      ReadFixtureTensors("tokens.safetensors");
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

TEST_P(ModelFixtureTest, Fp64IsTheTruth) {
  const FixtureModel& fixture = GetParam();
  const nlohmann::json expected =
      ReadFixtureJson(absl::StrCat(fixture.name, "/expected.json"));
  const std::map<std::string, Elements> truth =
      ReadFixtureTensors(absl::StrCat(fixture.name, "/expected.safetensors"));
  const double loss = expected["gradient"]["loss_fp64"];
  const double norm = expected["gradient"]["norm_fp64"];
  for (const bool stacked : {true, false}) {
    const LossAndGradients ours =
        ComputeGradients(fixture, ReferenceKernels(), DType::kF64, stacked);
    EXPECT_NEAR(ours.loss, loss, Fp64Tolerance(fixture) * loss);
    for (const auto& [name, gradient] : ours.gradients) {
      EXPECT_LE(L2Distance(gradient, truth.at("gradient/" + name)),
                Fp64Tolerance(fixture) * norm)
          << name << (stacked ? " stacked" : "");
    }
  }
}

TEST_P(ModelFixtureTest, Fp32IsAsGoodAsTorchs) {
  const FixtureModel& fixture = GetParam();
  const nlohmann::json expected =
      ReadFixtureJson(absl::StrCat(fixture.name, "/expected.json"));
  const nlohmann::json& gradient = expected["gradient"];
  const std::map<std::string, Elements> truth =
      ReadFixtureTensors(absl::StrCat(fixture.name, "/expected.safetensors"));
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
          L2Distance(a, b),
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
      ReadFixtureJson(absl::StrCat(fixture.name, "/expected.json"));
  const nlohmann::json& gradient = expected["gradient"];
  const std::map<std::string, Elements> truth =
      ReadFixtureTensors(absl::StrCat(fixture.name, "/expected.safetensors"));
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
          L2Distance(a, b) / L2Norm(b),
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
      ReadFixtureTensors(absl::StrCat(fixture.name, "/expected.safetensors"))
          .at("logits");
  const Elements inputs =
      ReadFixtureTensors("tokens.safetensors").at("gradient.inputs");
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
    EXPECT_LE(L2Distance(run.Read(value), expected),
              tolerance * L2Norm(expected))
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
                        Fp64Tolerance(fixture));
  ExpectGeneratedLogits(fixture, CpuKernels(), DType::kF32, 1e-5);
  ExpectGeneratedLogits(fixture, CpuKernels(), DType::kBF16, 3e-2);
}

// Two documents in one sequence against each alone: losses and gradients add
// up. (GPT-2's positions go on over documents.)
TEST_P(ModelFixtureTest, DocumentsDoNotSeeEachOther) {
  const FixtureModel& fixture = GetParam();
  if (!absl::StartsWith(fixture.name, "llama")) GTEST_SKIP();
  const std::map<std::string, Elements> tokens =
      ReadFixtureTensors("tokens.safetensors");
  const Elements& inputs = tokens.at("gradient.inputs");
  const Elements& targets = tokens.at("gradient.targets_unmasked");
  constexpr int64_t kCut = 10;
  struct Sums {
    double loss = 0;
    std::map<std::string, Elements> gradients;
  };
  const auto run_part = [&](int64_t begin, int64_t end, bool documents) {
    FixtureRun run(fixture, CpuKernels(), DType::kF32, true);
    const ForwardResult forward =
        run.Emit("micro", {.mode = ForwardMode::kTrain,
                           .batch = 1,
                           .length = end - begin,
                           .documents = documents});
    const std::map<std::string, ValueId> gradients = run.Differentiate();
    run.Write("tokens", Elements(inputs.begin() + begin, inputs.begin() + end));
    run.Write("targets",
              Elements(targets.begin() + begin, targets.begin() + end));
    if (documents) {
      Elements ids(end - begin, 1);
      std::fill_n(ids.begin(), kCut, 0);
      run.Write("documents", ids);
    }
    run.WritePosition(0);
    run.Run("micro");
    Sums sums;
    sums.loss = run.Read(forward.stats)[0];
    for (const auto& [name, value] : gradients)
      sums.gradients[name] = run.Read(value);
    return sums;
  };
  const Sums both = run_part(0, kLength, true),
             first = run_part(0, kCut, false),
             second = run_part(kCut, kLength, false),
             mixed = run_part(0, kLength, false);
  EXPECT_NEAR(both.loss, first.loss + second.loss, 1e-5 * both.loss);
  EXPECT_GT(std::abs(both.loss - mixed.loss), 1e-2);
  for (const auto& [name, gradient] : both.gradients) {
    Elements sum = first.gradients.at(name);
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] += second.gradients.at(name)[i];
    EXPECT_LE(L2Distance(gradient, sum), 1e-4 * L2Norm(sum)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelFixtureTest,
                         ::testing::ValuesIn(FixtureModels().begin(),
                                             FixtureModels().end()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace shardgraph
