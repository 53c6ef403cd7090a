#include "kernels/optimizer/optimizer.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/optimizer/optimizer_cases.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const Flat& flat : Flats()) {
    for (int rank = 0; rank < flat.ranks; ++rank) {
      cases.push_back(AdamWCase(flat, rank, DType::kBF16, false));
      cases.push_back(AdamWCase(flat, rank, DType::kBF16, true));
      cases.push_back(AdamWCase(flat, rank, DType::kF16, true));
      for (const bool has_momentum : {false, true}) {
        for (const bool has_compute : {false, true})
          cases.push_back(SgdCase(flat, rank, has_momentum, has_compute));
      }
      cases.push_back(SumOfSquaresCase(flat, rank));
      if (flat.n > 1000) continue;  // for the double's sake
      cases.push_back(LionCase(flat, rank, false));
      cases.push_back(LionCase(flat, rank, true));
      OpCase adam = AdamWCase(flat, rank, DType::kBF16, false);
      adam.attributes.SetInt("l2", 1);
      cases.push_back(adam);
      cases.push_back(Rounding(AdamWCase(flat, rank, DType::kBF16, true), 2));
      cases.push_back(Rounding(SgdCase(flat, rank, true, true), 1));
      cases.push_back(Rounding(LionCase(flat, rank, false), 1));
    }
  }
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const double micro : {0, 1, 5}) {
      cases.push_back(AccumulateCase(dtype, {}, micro));
      cases.push_back(AccumulateCase(dtype, {0}, micro));
      cases.push_back(AccumulateCase(dtype, {20001}, micro));
      cases.push_back(AccumulateCase(dtype, {3, 5}, micro));
    }
  }
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t n : {0, 1, 7, 1000, 20001}) {
      for (const int64_t size : {1, 2, 5})
        cases.push_back(SumPiecesCase(dtype, n, size));
    }
  }
  cases.push_back(FinishCase({}, 10, 12, 1, 1));
  cases.push_back(FinishCase({4, 5}, 10, 12, 1, 1));
  cases.push_back(FinishCase({4, 5, 0.25}, 10, 12, 1024, 0));
  cases.push_back(FinishCase({4, 5}, 0, 12, 1, 1));
  for (const NonFinite policy : {NonFinite::kStop, NonFinite::kIgnore}) {
    cases.push_back(FinishCase({4, 5}, 10, 12, 1, 1, policy, 0));
    cases.push_back(FinishCase({4, 5}, 10, 12, 1, 1, policy, 1));
  }
  cases.push_back(LossScaleCase(1024, 0, 0));
  cases.push_back(LossScaleCase(1024, 2, 0));
  cases.push_back(LossScaleCase(1024, 2, 1));
  cases.push_back(AdvanceCase(0));
  cases.push_back(AdvanceCase(1));
  return cases;
}

std::vector<TestKernels> Backends() {
  return {OptimizerReferenceKernels(), OptimizerCpuKernels(),
          OnCuda(OptimizerCudaKernels())};
}

TEST(Optimizer, Reference) {
  CheckKernels(Cases(), OptimizerReferenceKernels(),
               OptimizerReferenceKernels());
}

TEST(Optimizer, Cpu) {
  CheckCpuKernels(Cases(), OptimizerReferenceKernels(), OptimizerCpuKernels());
}

TEST(Optimizer, Cuda) {
  CheckCudaKernels(Cases(), OptimizerReferenceKernels(),
                   OptimizerCudaKernels());
}

TEST(Optimizer, CasesAreComplete) {
  EXPECT_EQ(CoveredOps(Cases()), NamesOf(OptimizerOps()));
  EXPECT_EQ(CoveredOps(OptimizerReferenceKernels()), NamesOf(OptimizerOps()));
  EXPECT_EQ(CoveredOps(OptimizerCpuKernels()), NamesOf(OptimizerOps()));
  EXPECT_EQ(CoveredOps(OptimizerCudaKernels()), NamesOf(OptimizerOps()));
}

// NaN in every padding element of every operand: results must keep exactly the
// padding they had, and nothing else may become NaN.
void CheckPadding(const OpCase& original, int shards, const Flat& flat) {
  SCOPED_TRACE(original.Name());
  OpCase op_case = original;
  std::vector<bool> covered(flat.n);
  for (size_t s = 0; s < flat.segments.size(); s += 3) {
    for (int64_t i = flat.segments[s]; i < flat.segments[s + 1]; ++i) {
      const int64_t at = i - op_case.rank * flat.n;
      if (at >= 0 && at < flat.n) covered[at] = true;
    }
  }
  for (int k = 0; k < shards; ++k) {
    std::vector<double>& values = op_case.operands[k].values;
    values = UniformValues(flat.n, 0.1, 1, k);
    for (int64_t i = 0; i < flat.n; ++i) {
      if (!covered[i]) values[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  for (const TestKernels& kernels : Backends()) {
    for (const auto& result : Evaluate(op_case, kernels, false)) {
      for (size_t i = 0; i < result.size(); ++i) {
        const bool padding =
            static_cast<int64_t>(result.size()) == flat.n && !covered[i];
        EXPECT_EQ(std::isnan(result[i]), padding) << i;
      }
    }
  }
}

TEST(Optimizer, NeverReadsOrWritesPadding) {
  for (const Flat& flat : Flats()) {
    for (int rank = 0; rank < flat.ranks; ++rank) {
      CheckPadding(AdamWCase(flat, rank, DType::kBF16, true), 5, flat);
      CheckPadding(SgdCase(flat, rank, true, true), 4, flat);
      CheckPadding(LionCase(flat, rank, true), 4, flat);
      CheckPadding(Rounding(AdamWCase(flat, rank, DType::kBF16, true), 2), 5,
                   flat);
      CheckPadding(SumOfSquaresCase(flat, rank), 1, flat);
    }
  }
}

// The shards of any number of ranks make up what one rank computes.
TEST(Optimizer, RanksMakeUpTheWhole) {
  const int64_t size = 9000;
  const std::vector<int64_t> segments = {5, 2000, 0,    2000, 4097,
                                         1, 4500, 8999, 0};
  const std::vector<double> gradient = UniformValues(size, -1, 1, 3);
  const auto run = [&](const TestKernels& kernels, int ranks) {
    std::vector<double> master;
    double squares = 0;
    const Flat flat = {size / ranks, ranks, segments};
    for (int rank = 0; rank < ranks; ++rank) {
      OpCase adamw = AdamWCase(flat, rank, DType::kBF16, false);
      OpCase sum = SumOfSquaresCase(flat, rank);
      const std::vector<double> part(gradient.begin() + rank * flat.n,
                                     gradient.begin() + (rank + 1) * flat.n);
      for (int k = 0; k < 4; ++k) adamw.operands[k].values = part;
      for (double& v : adamw.operands[3].values) v = v * v;
      sum.operands[0].values = part;
      const auto shard = Evaluate(adamw, kernels, false)[0];
      master.insert(master.end(), shard.begin(), shard.end());
      squares += Evaluate(sum, kernels, false)[0][0];
    }
    return std::make_pair(master, squares);
  };
  for (const TestKernels& kernels : Backends()) {
    const auto one = run(kernels, 1);
    for (const int ranks : {2, 3, 4}) {
      const auto many = run(kernels, ranks);
      EXPECT_EQ(many.first, one.first);
      EXPECT_NEAR(many.second, one.second, 1e-6 * one.second);
    }
  }
}

// torch.optim.AdamW written out in FP64, over several steps of one element.
TEST(AdamW, FollowsTheFormulaOverSteps) {
  const double rate = 0.01, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  const double decay = 0.1;
  double p = 0.5, m = 0, v = 0;
  double master = 0.5, exp_avg = 0, exp_avg_sq = 0;
  for (int step = 1; step <= 10; ++step) {
    const double g = std::sin(step) * 0.3;
    p *= 1 - rate * decay;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    p -= rate / (1 - std::pow(beta1, step)) * m /
         (std::sqrt(v) / std::sqrt(1 - std::pow(beta2, step)) + epsilon);
    OpCase op_case = AdamWCase({1, 1, {0, 1, 0}}, 0, DType::kBF16, true);
    op_case.attributes.SetDouble("beta1_0", beta1)
        .SetDouble("beta2_0", beta2)
        .SetDouble("epsilon_0", epsilon)
        .SetDouble("weight_decay_0", decay);
    op_case.operands[0].values = {master};
    op_case.operands[1].values = {4 * g};  // undone by gradient_scale
    op_case.operands[2].values = {exp_avg};
    op_case.operands[3].values = {exp_avg_sq};
    op_case.operands[5].values.assign(8, rate);
    op_case.operands[6].values.assign(8, std::pow(beta1, step - 1));
    op_case.operands[7].values.assign(8, std::pow(beta2, step - 1));
    op_case.operands[8].values = {0.25};
    const auto results = Evaluate(op_case, OptimizerCpuKernels(), false);
    master = results[0][0];
    exp_avg = results[1][0];
    exp_avg_sq = results[2][0];
    EXPECT_NEAR(master, p, 1e-6);
    EXPECT_NEAR(exp_avg, m, 1e-7);
    EXPECT_NEAR(exp_avg_sq, v, 1e-7);
    EXPECT_EQ(results[3][0],
              static_cast<double>(BFloat16(static_cast<float>(master))));
  }
}

// Both neighbours occur, each with the chance that makes the mean right; other
// steps, seeds and elements draw other numbers, other splits the same.
TEST(Moments, AreRoundedByChance) {
  const int64_t n = 4096;
  const auto moments = [&](const TestKernels& kernels, uint64_t seed, int ranks,
                           double run_step) {
    std::vector<double> all[2];
    for (int rank = 0; rank < ranks; ++rank) {
      OpCase op_case = Rounding(
          AdamWCase({n / ranks, ranks, {0, n, 0}}, rank, DType::kBF16, false),
          2, seed);
      for (int k : {0, 1, 2, 3})
        op_case.operands[k].values.assign(n / ranks, 0);
      // d = g / 4; m = d / 2 and v = d^2 / 4 lie 0.3125 and 0.6258 of the way
      // from 1 to the next BF16 number.
      op_case.operands[1].values.assign(n / ranks, 8 * (1 + 0.3125 / 128));
      op_case.operands.back().values = {run_step};
      const auto results = Evaluate(op_case, kernels, false);
      for (int k : {0, 1})
        all[k].insert(all[k].end(), results[1 + k].begin(),
                      results[1 + k].end());
    }
    return std::make_pair(all[0], all[1]);
  };
  const auto reference = moments(OptimizerReferenceKernels(), 5, 1, 12);
  for (const auto* values : {&reference.first, &reference.second}) {
    const double low = 1;
    double mean = 0;
    for (const double value : *values) {
      EXPECT_TRUE(value == low || value == low + 0x1p-7) << value;
      mean += (value - low) * 128 / n;
    }
    const double wanted = values == &reference.first ? 0.3125 : 0.62576;
    EXPECT_NEAR(mean, wanted, 4 * 0.5 / std::sqrt(n));
  }
  EXPECT_NE(reference, moments(OptimizerReferenceKernels(), 6, 1, 12));
  EXPECT_NE(reference, moments(OptimizerReferenceKernels(), 5, 1, 13));
  for (const TestKernels& kernels : Backends()) {
    EXPECT_EQ(reference, moments(kernels, 5, 1, 12));
    EXPECT_EQ(reference, moments(kernels, 5, 2, 12));
  }
}

TEST(Optimizer, FoundInfWritesNothing) {
  const Flat flat = {100, 1, {0, 100, 0}};
  for (const TestKernels& kernels : Backends()) {
    for (OpCase op_case :
         {AdamWCase(flat, 0, DType::kBF16, true, 1),
          SgdCase(flat, 0, true, true, 1), LionCase(flat, 0, true, 1),
          Rounding(LionCase(flat, 0, true, 1), 1)}) {
      const std::vector<double> ones(100, 1);
      for (OperandCase& operand : op_case.operands) {
        if (operand.type.num_elements() == 100) operand.values = ones;
      }
      op_case.operands[1].values.assign(
          100, std::numeric_limits<double>::infinity());
      for (const auto& result : Evaluate(op_case, kernels, false))
        EXPECT_EQ(result, ones);
    }
    const auto state = Evaluate(AdvanceCase(1), kernels, false);
    EXPECT_EQ(state[0][0], 41);
    EXPECT_EQ(state[1][0], 0.5);
  }
}

TEST(AdvanceState, MultipliesThePowersOfTheGroupsThatHaveBetas) {
  for (const TestKernels& kernels : Backends()) {
    const auto state = Evaluate(AdvanceCase(0), kernels, false);
    EXPECT_EQ(state[0][0], 42);
    EXPECT_EQ(state[1],
              (std::vector<double>{0.45, 0.5, 0.5, 0.25, 0.5, 0.5, 0.5, 0.5}));
    EXPECT_EQ(state[2][0], 0.2475);
    EXPECT_EQ(state[2][3], 0.25);
  }
}

TEST(FinishGradients, AveragesClipsAndFlags) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const TestKernels& kernels : Backends()) {
    // sqrt(9) * 12 / 10 / 2 = 1.8, clipped to 0.9.
    auto r = Evaluate(FinishCase({4, 5}, 10, 12, 2, 0.9), kernels, false);
    EXPECT_DOUBLE_EQ(r[0][0], 1.8);
    EXPECT_DOUBLE_EQ(r[1][0], 0.6 * 0.9 / (1.8 + 1e-6));
    EXPECT_EQ(r[2][0], 0);
    // Not clipped below the limit, nor without one.
    for (const double max_norm : {2.0, 0.0}) {
      r = Evaluate(FinishCase({4, 5}, 10, 12, 2, max_norm), kernels, false);
      EXPECT_DOUBLE_EQ(r[1][0], 0.6);
    }
    // No unmasked token: no update.
    r = Evaluate(FinishCase({0}, 0, 12, 1, 1), kernels, false);
    EXPECT_EQ(r[0][0], 0);
    EXPECT_EQ(r[1][0], 0);
    EXPECT_EQ(r[2][0], 0);
    for (const double bad : {inf, std::nan("")}) {
      r = Evaluate(FinishCase({1, bad, 1}, 10, 12, 1, 1), kernels, false);
      EXPECT_EQ(r[1][0], 0);
      EXPECT_EQ(r[2][0], 1);
    }
  }
}

TEST(FinishGradients, StopsForGoodOrLooksAway) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const TestKernels& kernels : Backends()) {
    const auto finish = [&](double sum, NonFinite policy, double stop) {
      const auto r = Evaluate(FinishCase({sum}, 10, 10, 1, 0, policy, stop),
                              kernels, false);
      return std::vector<double>{r[1][0], r[2][0], r[3][0]};
    };
    using Outcome = std::vector<double>;  // gradient_scale, found_inf, stop
    EXPECT_EQ(finish(4, NonFinite::kStop, 0), Outcome({1, 0, 0}));
    EXPECT_EQ(finish(inf, NonFinite::kStop, 0), Outcome({0, 1, 1}));
    EXPECT_EQ(finish(4, NonFinite::kStop, 1), Outcome({0, 1, 1}));
    EXPECT_EQ(finish(inf, NonFinite::kSkip, 0), Outcome({0, 1, 0}));
    EXPECT_EQ(finish(inf, NonFinite::kIgnore, 0), Outcome({1, 0, 0}));
  }
}

TEST(UpdateLossScale, GrowsAndBacksOff) {
  for (const TestKernels& kernels : Backends()) {
    const auto update = [&](double scale, double counter, double found_inf) {
      const auto r =
          Evaluate(LossScaleCase(scale, counter, found_inf), kernels, false);
      return std::make_pair(r[0][0], r[1][0]);
    };
    EXPECT_EQ(update(1024, 0, 0), std::make_pair(1024.0, 1.0));
    EXPECT_EQ(update(1024, 2, 0), std::make_pair(2048.0, 0.0));
    EXPECT_EQ(update(1024, 2, 1), std::make_pair(512.0, 0.0));
    // The largest power of two does not become infinity.
    EXPECT_EQ(update(0x1p127, 2, 0), std::make_pair(0x1p127, 0.0));
  }
}

// In FP32 and in order: 1 + 2^-24 - 1 is 0, 1 - 1 + 2^-24 is not.
TEST(SumPieces, AddsInOrder) {
  OpCase op_case;
  op_case.op = Op("sum_pieces");
  op_case.attributes.SetInt("size", 3);
  op_case.operands = {Fixed(TensorType(DType::kBF16, {6}),
                            {1, 1, std::exp2(-24), -1, -1, std::exp2(-24)})};
  const auto sums = Evaluate(op_case, OptimizerCpuKernels(), false);
  EXPECT_EQ(sums[0][0], 0);
  EXPECT_EQ(sums[0][1], std::exp2(-24));
}

TEST(Accumulate, FirstMicroBatchDiscardsWhatWasThere) {
  for (const TestKernels& kernels : Backends()) {
    OpCase op_case = AccumulateCase(DType::kF32, {2}, 0);
    op_case.operands[0].values.assign(2,
                                      std::numeric_limits<double>::quiet_NaN());
    op_case.operands[1].values = {1, 2};
    EXPECT_EQ(Evaluate(op_case, kernels, false)[0],
              (std::vector<double>{1, 2}));
  }
}

TEST(ClipSegments, CutsAtTheShard) {
  const std::vector<int64_t> segments = {2, 12, 0, 14, 15, 1, 25, 30, 2};
  EXPECT_EQ(*ClipSegments(segments, 10, 0, 3),
            (std::vector<ShardRange>{{2, 10, 0}}));
  EXPECT_EQ(*ClipSegments(segments, 10, 1, 3),
            (std::vector<ShardRange>{{0, 2, 0}, {4, 5, 1}}));
  EXPECT_EQ(*ClipSegments(segments, 10, 2, 3),
            (std::vector<ShardRange>{{5, 10, 2}}));
  EXPECT_EQ(ClipSegments(segments, 10, 0, 2).status().message(),
            "segment [25, 30) ends behind the flat parameter of 2 shards of 10 "
            "elements");
}

TEST(Optimizer, RefusesBadSegmentsAndMissingConstants) {
  std::vector<TensorType> results;
  const TensorType gradient(DType::kF32, {10});
  const auto infer = [&](std::vector<int64_t> segments) {
    return std::string(
        InferResults(*Op("sum_of_squares"),
                     Attributes().SetInts("segments", std::move(segments)),
                     {gradient}, &results)
            .message());
  };
  EXPECT_EQ(infer({0, 5, 0, 5, 9, 1}), "");
  EXPECT_EQ(infer({0, 5}),
            "sum_of_squares: attribute segments has 2 numbers, must be triples "
            "(begin, end, group)");
  EXPECT_EQ(infer({0, 5, 0, 4, 9, 1}),
            "sum_of_squares: attribute segments: [4, 9) must be sorted and "
            "disjoint; the one before ends at 5");
  EXPECT_EQ(infer({0, 5, 8}),
            "sum_of_squares: attribute segments: group 8 must be in [0, 8)");
  OpCase op_case = AdamWCase({10, 1, {0, 5, 1}}, 0, DType::kBF16, false);
  std::vector<TensorType> types;
  for (const OperandCase& operand : op_case.operands)
    types.push_back(operand.type);
  const Attributes without =
      Attributes().SetInts("segments", {0, 5, 1}).SetDouble("beta1_1", 0.9);
  EXPECT_EQ(InferResults(*Op("adamw"), without, types, &results).message(),
            "adamw: attribute beta2_1 is missing");
}

}  // namespace
}  // namespace shardgraph
