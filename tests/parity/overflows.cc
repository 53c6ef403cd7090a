#include "tests/parity/overflows.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/random/random.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/parity/parity.h"

namespace shardgraph {
namespace {

constexpr int64_t kToken = 130;
constexpr int64_t kPosition = 5;

using Overrides = std::vector<std::string>;

Overrides With(Overrides overrides, const Overrides& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

}  // namespace

Overflows::Overflows(const std::vector<std::string>& overrides)
    : config_(ParityConfig(
          "gpt2 { vocab_size: 131 n_positions: 16 n_embd: 36 n_layer: 2 "
          "n_head: 3 tie_word_embeddings: false }",
          6, With({"optimizer.learning_rate=0.01"}, overrides))) {
  options_.world_size = 2;
  const bool fp16 = config_.precision().compute() == FP16;
  options_.initial = [fp16](const Parameter& parameter) {
    std::vector<float> values(parameter.numel());
    const RandomKey key = MakeRandomKey(1, HashName(parameter.name));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = parameter.init == Parameter::Init::kOnes
                      ? 1
                      : 0.1f * RandomNormal(key, i);
    // In F16 the sum with the position leaves the range, in F32 the mean of
    // the first norm. Signs alternate in F16, so that norms see no constant.
    const int64_t width = parameter.shape.back();
    const auto fill = [&](int64_t row, float value) {
      for (int64_t c = 0; c < width; ++c)
        values[row * width + c] = fp16 && c % 2 == 1 ? -value : value;
    };
    if (parameter.name == "transformer.wte.weight")
      fill(kToken, fp16 ? 60000.0f : 3e38f);
    if (parameter.name == "transformer.wpe.weight" && fp16)
      fill(kPosition, 6000.0f);
    return values;
  };
}

void Overflows::In(const std::vector<int64_t>& steps, int rank) {
  const int64_t batch = config_.data().batch_size();
  options_.sequences = [steps, rank, batch](int64_t sequence,
                                            absl::Span<int32_t> tokens,
                                            absl::Span<int32_t> targets) {
    for (size_t t = 0; t < tokens.size(); ++t) {
      tokens[t] = static_cast<int32_t>((sequence * 7 + t) % kToken);
      targets[t] = static_cast<int32_t>((sequence * 7 + t + 1) % kToken);
    }
    const bool chosen =
        std::count(steps.begin(), steps.end(), sequence / batch) > 0;
    if (chosen && sequence % batch == batch * (rank + 1) / 2 - 1)
      tokens[kPosition] = kToken;
  };
}

Overflows Overflows::OfGradScaler(const std::vector<std::string>& overrides) {
  const auto truth = std::make_shared<nlohmann::json>();
  std::ifstream("tests/fixtures/grad_scaler.json") >> *truth;
  const std::vector<int64_t> overflows = (*truth)["overflows"];
  Overflows run(With({"precision.compute=FP16", "schedule.warmup_steps=100",
                      absl::StrCat("precision.loss_scale.initial=",
                                   (*truth)["initial"].dump()),
                      absl::StrCat("precision.loss_scale.growth_interval=",
                                   (*truth)["growth_interval"].dump()),
                      absl::StrCat("run.steps=", (*truth)["steps"].dump())},
                     overrides));
  run.In(overflows, 1);
  const auto before = std::make_shared<std::array<std::vector<char>, 2>>();
  run.options_.after_step = [=](int rank, int64_t step, Executor& executor,
                                const TrainingPlan& plan) {
    const StepState state = StateOf(executor, plan);
    EXPECT_EQ(state.loss_scale, (*truth)["scales"][step + 1]) << step;
    EXPECT_EQ(state.found_inf != 0, (*truth)["skipped"][step]) << step;
    EXPECT_EQ(state.optimizer_step,
              step + 1 -
                  std::count_if(overflows.begin(), overflows.end(),
                                [&](int64_t o) { return o <= step; }));
    EXPECT_EQ(state.run_step, step);
    EXPECT_FLOAT_EQ(state.learning_rate[0], 0.01f * (step + 1) / 100);
    std::vector<char> after = WeightsOf(executor, plan);
    if (step > 0) {
      EXPECT_EQ(after == (*before)[rank], (*truth)["skipped"][step]) << step;
    }
    (*before)[rank] = std::move(after);
  };
  return run;
}

StepState StateOf(Executor& executor, const TrainingPlan& plan) {
  StepState state;
  SG_CHECK_OK(executor.ReadBuffer(plan.state, 0, &state, sizeof(state)));
  return state;
}

std::vector<char> WeightsOf(Executor& executor, const TrainingPlan& plan) {
  std::vector<char> all;
  for (const UnitBuffers& unit : plan.units) {
    for (const BufferId buffer : {unit.master, unit.compute, unit.exp_avg}) {
      if (buffer == kNone) continue;
      std::vector<char> bytes(plan.plan.graph.buffers[buffer].bytes);
      SG_CHECK_OK(executor.ReadBuffer(buffer, 0, bytes.data(),
                                      static_cast<int64_t>(bytes.size())));
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
  }
  return all;
}

}  // namespace shardgraph
