// Optimizers against PyTorch, on sharded flat parameters
// (tests/fixtures/README.md): AdamW in the whole update chain of a training
// step (sum of squares, norm and clipping, advance of the state), the others
// over recorded gradients.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/op_table.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"
#include "tests/harness/torch_fixture.h"

namespace shardgraph {
namespace {

using Kernels = TestKernels;

OpCase Case(absl::string_view op, Attributes attributes,
            std::vector<OperandCase> operands) {
  OpCase op_case;
  op_case.op = FindOp(op);
  op_case.attributes = std::move(attributes);
  op_case.operands = std::move(operands);
  return op_case;
}

// The three parameters as one flat parameter over three ranks, with padding in
// front of each; the update chain of a training step.
class OptimizerRun {
 public:
  static constexpr int kRanks = 3;
  static constexpr int64_t kShard = 30;
  struct Parameter {
    const char* name;
    int64_t begin, size;
    int group;
  };
  static constexpr Parameter kParameters[] = {
      {"matrix", 1, 35, 0}, {"cube", 38, 24, 0}, {"vector", 70, 13, 1}};

  OptimizerRun(const TorchFixture& fixture, const std::string& run,
               Kernels kernels)
      : fixture_(fixture), run_(run), kernels_(kernels) {
    const nlohmann::json& json = fixture.json();
    for (int g = 0; g < 2; ++g) {
      const std::string suffix = absl::StrCat("_", g);
      attributes_.SetDouble("beta1" + suffix, json["beta1"])
          .SetDouble("beta2" + suffix, json["beta2"])
          .SetDouble("epsilon" + suffix, json["eps"])
          .SetDouble("weight_decay" + suffix,
                     g == 0 ? double{json["weight_decay"]} : 0.0);
    }
    std::vector<int64_t> segments;
    for (const Parameter& p : kParameters)
      segments.insert(segments.end(), {p.begin, p.begin + p.size, p.group});
    attributes_.SetInts("segments", segments);
    if (run == "clipped") attributes_.SetDouble("max_norm", json["clip_norm"]);
    for (const Parameter& p : kParameters)
      Place(p, Row(absl::StrCat(run, "/param/", p.name), 0), &master_);
  }

  void Step(int step) {
    Values gradient(kRanks * kShard, std::nan(""));
    for (const Parameter& p : kParameters)
      Place(p, Row(absl::StrCat("grad/", p.name), step), &gradient);
    Values sums;
    for (int rank = 0; rank < kRanks; ++rank) {
      OpCase sum = Case("sum_of_squares", attributes_, {Shard(gradient, rank)});
      SetRank(&sum, rank);
      sums.push_back(Evaluate(sum, kernels_, false)[0][0]);
    }
    const auto finish =
        Evaluate(Case("finish_gradients", attributes_,
                      {OperandCase(TensorType(DType::kF64, {kRanks}), sums),
                       Scalar(DType::kF64, 5), Scalar(DType::kF64, 5),
                       Scalar(DType::kF32, 1), Scalar(DType::kI32, 0)}),
                 kernels_, false);
    const double wanted = fixture_.json()["grad_norms_fp64"][step];
    EXPECT_NEAR(finish[0][0], wanted, 1e-6 * wanted);

    const Values rates(8, fixture_.json()["learning_rate"]);
    for (int rank = 0; rank < kRanks; ++rank) {
      OpCase adamw =
          Case("adamw", attributes_,
               {Shard(master_, rank), Shard(gradient, rank),
                Shard(exp_avg_, rank), Shard(exp_avg_sq_, rank),
                OperandCase(TensorType(DType::kF32, {8}), rates),
                OperandCase(TensorType(DType::kF64, {8}), beta1_power_),
                OperandCase(TensorType(DType::kF64, {8}), beta2_power_),
                Scalar(DType::kF64, finish[1][0]),
                Scalar(DType::kI32, finish[2][0])});
      SetRank(&adamw, rank);
      const auto updated = Evaluate(adamw, kernels_, false);
      Values* const states[] = {&master_, &exp_avg_, &exp_avg_sq_};
      for (int i = 0; i < 3; ++i)
        std::copy(updated[i].begin(), updated[i].end(),
                  states[i]->begin() + rank * kShard);
    }
    const auto state =
        Evaluate(Case("advance_state", attributes_,
                      {Scalar(DType::kI64, step),
                       OperandCase(TensorType(DType::kF64, {8}), beta1_power_),
                       OperandCase(TensorType(DType::kF64, {8}), beta2_power_),
                       Scalar(DType::kI32, finish[2][0])}),
                 kernels_, false);
    beta1_power_ = state[1];
    beta2_power_ = state[2];
  }

  void CheckEnd(int steps) const {
    for (const Parameter& p : kParameters) {
      SCOPED_TRACE(p.name);
      const std::string param = absl::StrCat(run_, "/param/", p.name);
      Check(Take(p, master_), Row(param, steps), Row(param + "_f32", steps),
            Distance(Row(param, steps), Row(param, 0)));
      for (const auto& [moment, state] :
           {std::make_pair("exp_avg", &exp_avg_),
            std::make_pair("exp_avg_sq", &exp_avg_sq_)}) {
        const std::string name = absl::StrCat(run_, "/", moment, "/", p.name);
        const Values truth = fixture_.Get(name);
        Check(Take(p, *state), truth, fixture_.Get(name + "_f32"), Norm(truth));
      }
    }
  }

 private:
  static void Check(const Values& ours, const Values& truth,
                    const Values& torch, double size) {
    EXPECT_LE(Distance(ours, truth), 3 * Distance(torch, truth) + 1e-6 * size);
  }
  static OperandCase Scalar(DType dtype, double value) {
    return OperandCase(TensorType(dtype, {}), Values{value});
  }
  static OperandCase Shard(const Values& full, int rank) {
    return OperandCase(TensorType(DType::kF32, {kShard}),
                       Values(full.begin() + rank * kShard,
                              full.begin() + (rank + 1) * kShard));
  }
  static void SetRank(OpCase* op_case, int rank) {
    op_case->rank = rank;
    op_case->group_size = kRanks;
  }
  static void Place(const Parameter& p, const Values& values, Values* full) {
    std::copy(values.begin(), values.end(), full->begin() + p.begin);
  }
  static Values Take(const Parameter& p, const Values& full) {
    return Values(full.begin() + p.begin, full.begin() + p.begin + p.size);
  }
  // Row `index` of the first dimension.
  Values Row(const std::string& name, int index) const {
    const Values all = fixture_.Get(name);
    const int64_t size = all.size() / fixture_.Shape(name)[0];
    return Values(all.begin() + index * size, all.begin() + (index + 1) * size);
  }

  const TorchFixture& fixture_;
  const std::string run_;
  const Kernels kernels_;
  Attributes attributes_;
  Values master_ = Values(kRanks * kShard, std::nan(""));
  Values exp_avg_ = Values(kRanks * kShard);
  Values exp_avg_sq_ = Values(kRanks * kShard);
  Values beta1_power_ = Values(8, 1.0);
  Values beta2_power_ = Values(8, 1.0);
};

// The updates of one kind of optimizer over the recorded gradients, on three
// ranks as above; parameters and moments after the last step, by rank.
class KindRun {
 public:
  KindRun(const TorchFixture& fixture, const std::string& kind, Kernels kernels)
      : fixture_(fixture), kind_(kind), kernels_(kernels) {
    const nlohmann::json& json = fixture.json()["kinds"][kind];
    op_ = kind == "lion" ? "lion" : kind.rfind("sgd", 0) == 0 ? "sgd" : "adamw";
    rate_ = json["learning_rate"];
    moments_ = op_ == "adamw" ? 2 : kind == "sgd" ? 0 : 1;
    attributes_.SetInt("l2", kind == "adam")
        .SetInt("has_momentum", kind == "sgd_momentum");
    for (int g = 0; g < 2; ++g) {
      const std::string suffix = absl::StrCat("_", g);
      for (const auto& [ours, theirs] :
           {std::make_pair("beta1", "beta1"), std::make_pair("beta2", "beta2"),
            std::make_pair("epsilon", "eps"),
            std::make_pair("momentum", "momentum")}) {
        betas_[ours] = json.value(theirs, 0.0);
        attributes_.SetDouble(ours + suffix, betas_[ours]);
      }
      attributes_.SetDouble(
          "weight_decay" + suffix,
          g == 0 ? double{fixture.json()["weight_decay"]} : 0.0);
    }
    std::vector<int64_t> segments;
    for (const Parameter& p : OptimizerRun::kParameters) {
      segments.insert(segments.end(), {p.begin, p.begin + p.size, p.group});
      Place(p, fixture.Get(absl::StrCat("initial/", p.name)), &states_[0]);
    }
    attributes_.SetInts("segments", segments);
  }

  void Step(int step) {
    Values gradient(kAll);
    for (const Parameter& p : OptimizerRun::kParameters) {
      const Values all = fixture_.Get(absl::StrCat("grad/", p.name));
      Place(p,
            Values(all.begin() + step * p.size,
                   all.begin() + (step + 1) * p.size),
            &gradient);
    }
    for (int rank = 0; rank < OptimizerRun::kRanks; ++rank) {
      const auto shard = [&](const Values& full) {
        const auto begin = full.begin() + rank * OptimizerRun::kShard;
        return OperandCase(TensorType(DType::kF32, {OptimizerRun::kShard}),
                           Values(begin, begin + OptimizerRun::kShard));
      };
      std::vector<OperandCase> operands = {shard(states_[0]), shard(gradient)};
      for (int i = 0; i < moments_; ++i)
        operands.push_back(shard(states_[1 + i]));
      operands.push_back(
          OperandCase(TensorType(DType::kF32, {8}), Values(8, rate_)));
      if (op_ == "adamw") {
        for (const char* beta : {"beta1", "beta2"}) {
          operands.push_back(
              OperandCase(TensorType(DType::kF64, {8}),
                          Values(8, std::pow(betas_[beta], step))));
        }
      }
      operands.push_back(OperandCase(TensorType(DType::kF64, {}), Values{1}));
      operands.push_back(OperandCase(TensorType(DType::kI32, {}), Values{0}));
      OpCase op_case = Case(op_, attributes_, std::move(operands));
      op_case.rank = rank;
      op_case.group_size = OptimizerRun::kRanks;
      const auto updated = Evaluate(op_case, kernels_, false);
      for (size_t i = 0; i < updated.size(); ++i) {
        std::copy(updated[i].begin(), updated[i].end(),
                  states_[i].begin() + rank * OptimizerRun::kShard);
      }
    }
  }

  // Within 1e-6 of torch in FP32, or of the truth where kernels are closer to
  // it: rounding 1 - rate x decay alone moves FP32 by as much in 50 steps.
  void CheckEnd() const {
    const char* const names[] = {"param", "exp_avg", "exp_avg_sq"};
    for (int i = 0; i <= moments_; ++i) {
      for (const Parameter& p : OptimizerRun::kParameters) {
        const std::string name =
            absl::StrCat(kind_, "/", names[i], "/", p.name);
        SCOPED_TRACE(name);
        const Values ours(states_[i].begin() + p.begin,
                          states_[i].begin() + p.begin + p.size);
        const Values truth = fixture_.Get(name);
        const Values torch = fixture_.Get(name + "_f32");
        const double allowed = 1e-6 * Norm(truth);
        EXPECT_LE(std::min(Distance(ours, torch), Distance(ours, truth)),
                  allowed);
        EXPECT_LE(Distance(ours, truth),
                  std::max(allowed, 2 * Distance(torch, truth)));
      }
    }
  }

 private:
  using Parameter = OptimizerRun::Parameter;
  static constexpr int64_t kAll = OptimizerRun::kRanks * OptimizerRun::kShard;

  static void Place(const Parameter& p, const Values& values, Values* full) {
    std::copy(values.begin(), values.end(), full->begin() + p.begin);
  }

  const TorchFixture& fixture_;
  const std::string kind_;
  const Kernels kernels_;
  std::string op_;
  double rate_;
  int moments_;
  std::map<std::string, double> betas_;
  Attributes attributes_;
  Values states_[3] = {Values(kAll), Values(kAll), Values(kAll)};
};

TEST(OptimizerFixtures, EveryKind) {
  const TorchFixture fixture("tests/fixtures/optimizer_kinds");
  const int steps = fixture.json()["steps"];
  for (const Kernels& kernels : std::initializer_list<Kernels>{
           OptimizerReferenceKernels(), OptimizerCpuKernels(),
           OnCuda(OptimizerCudaKernels())}) {
    for (const auto& [kind, constants] : fixture.json()["kinds"].items()) {
      KindRun run(fixture, kind, kernels);
      for (int step = 0; step < steps; ++step) run.Step(step);
      run.CheckEnd();
    }
  }
}

TEST(OptimizerFixtures, AdamWAndClipping) {
  const TorchFixture fixture("tests/fixtures/optimizer");
  const int steps = fixture.json()["steps"];
  for (const Kernels& kernels : std::initializer_list<Kernels>{
           OptimizerReferenceKernels(), OptimizerCpuKernels(),
           OnCuda(OptimizerCudaKernels())}) {
    for (const std::string run : {"plain", "clipped"}) {
      SCOPED_TRACE(run);
      OptimizerRun optimizer(fixture, run, kernels);
      for (int step = 0; step < steps; ++step) optimizer.Step(step);
      optimizer.CheckEnd(steps);
    }
  }
}

}  // namespace
}  // namespace shardgraph
