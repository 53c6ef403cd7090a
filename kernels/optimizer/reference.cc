#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "kernels/reference/reference_kernel.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

constexpr int64_t kBlock = 4096;  // elements of a partial sum of squares

// Calls body(index in the shard, group) for the elements that segments cover.
template <typename Body>
void ForEachElement(const ReferenceCall& call, Body body) {
  const int64_t n = call.operand(0).size();
  const int64_t offset = call.rank() * n;
  const std::vector<int64_t>& segments = call.attributes().Ints("segments");
  for (int64_t i = 0; i < n; ++i) {
    for (size_t s = 0; s < segments.size(); s += 3) {
      if (offset + i >= segments[s] && offset + i < segments[s + 1])
        body(i, static_cast<int>(segments[s + 2]));
    }
  }
}

void Accumulate(const ReferenceCall& call) {
  const bool first = call.operand(2).Get() == 0;
  for (int64_t i = 0; i < call.result(0).size(); ++i) {
    const double contribution = call.operand(1).GetFlat(i);
    call.result(0).SetFlat(
        first ? contribution : call.operand(0).GetFlat(i) + contribution, i);
  }
}

void SumPieces(const ReferenceCall& call) {
  const int64_t n = call.result(0).size();
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t at = i; at < call.operand(0).size(); at += n)
      sum += call.operand(0).Get(at);
    call.result(0).Set(sum, i);
  }
}

void SumOfSquares(const ReferenceCall& call) {
  const int64_t offset = call.rank() * call.operand(0).size();
  double sum = 0, partial = 0;
  int64_t block = -1;
  ForEachElement(call, [&](int64_t i, int) {
    if ((offset + i) / kBlock != block) {
      sum += partial;
      partial = 0;
      block = (offset + i) / kBlock;
    }
    const double g = call.operand(0).Get(i);
    partial += g * g;
  });
  call.result(0).Set(sum + partial);
}

void FinishGradients(const ReferenceCall& call) {
  double sum = 0;
  for (int64_t i = 0; i < call.operand(0).size(); ++i)
    sum += call.operand(0).Get(i);
  const double tokens = call.operand(1).Get();
  const double average =
      tokens == 0 ? 0 : call.operand(2).Get() / tokens / call.operand(3).Get();
  const double norm = std::sqrt(sum) * average;
  const double max_norm = call.attributes().Double("max_norm");
  const double clip =
      max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  const bool found_inf = !std::isfinite(sum);
  call.result(0).Set(norm);
  call.result(1).Set(found_inf ? 0.0 : average * clip);
  call.result(2).Set(found_inf);
}

void AdamW(const ReferenceCall& call) {
  const bool has_compute = call.attributes().Int("has_compute") != 0;
  const int scalars = has_compute ? 5 : 4;
  if (call.operand(scalars + 4).Get() != 0) return;
  ForEachElement(call, [&](int64_t i, int group) {
    const auto constant = [&](const char* name) {
      return GroupAttribute(call.attributes(), name, group);
    };
    const double rate = call.operand(scalars).Get(group);
    const double beta1 = constant("beta1"), beta2 = constant("beta2");
    const double correction1 = 1 - call.operand(scalars + 1).Get(group) * beta1;
    const double correction2 = 1 - call.operand(scalars + 2).Get(group) * beta2;
    const double d = call.operand(1).Get(i) * call.operand(scalars + 3).Get();
    const double m = call.operand(2).Get(i) * beta1 + d * (1 - beta1);
    const double v = call.operand(3).Get(i) * beta2 + d * d * (1 - beta2);
    const double denominator =
        std::sqrt(v) / std::sqrt(correction2) + constant("epsilon");
    const double p =
        call.operand(0).Get(i) * (1 - rate * constant("weight_decay")) -
        rate / correction1 * m / denominator;
    call.result(0).Set(p, i);
    call.result(1).Set(m, i);
    call.result(2).Set(v, i);
    if (has_compute) call.result(3).Set(call.result(0).Get(i), i);
  });
}

void Sgd(const ReferenceCall& call) {
  const bool has_momentum = call.attributes().Int("has_momentum") != 0;
  const bool has_compute = call.attributes().Int("has_compute") != 0;
  const int scalars = 2 + has_momentum + has_compute;
  if (call.operand(scalars + 2).Get() != 0) return;
  ForEachElement(call, [&](int64_t i, int group) {
    const auto constant = [&](const char* name) {
      return GroupAttribute(call.attributes(), name, group);
    };
    double d = call.operand(1).Get(i) * call.operand(scalars + 1).Get() +
               call.operand(0).Get(i) * constant("weight_decay");
    if (has_momentum) {
      d += call.operand(2).Get(i) * constant("momentum");
      call.result(1).Set(d, i);
    }
    call.result(0).Set(
        call.operand(0).Get(i) - call.operand(scalars).Get(group) * d, i);
    if (has_compute)
      call.result(1 + has_momentum).Set(call.result(0).Get(i), i);
  });
}

void AdvanceState(const ReferenceCall& call) {
  if (call.operand(3).Get() != 0) return;
  call.result(0).Set(call.operand(0).Get() + 1);
  for (int g = 0; g < StepState::kMaxGroups; ++g) {
    call.result(1).Set(call.operand(1).Get(g) *
                           GroupAttribute(call.attributes(), "beta1", g, 1),
                       g);
    call.result(2).Set(call.operand(2).Get(g) *
                           GroupAttribute(call.attributes(), "beta2", g, 1),
                       g);
  }
}

}  // namespace

absl::Span<const KernelDef> OptimizerReferenceKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "accumulate", .prepare = PrepareReference<Accumulate>},
      {.op = "sum_pieces", .prepare = PrepareReference<SumPieces>},
      {.op = "sum_of_squares", .prepare = PrepareReference<SumOfSquares>},
      {.op = "finish_gradients", .prepare = PrepareReference<FinishGradients>},
      {.op = "adamw", .prepare = PrepareReference<AdamW>},
      {.op = "sgd", .prepare = PrepareReference<Sgd>},
      {.op = "advance_state", .prepare = PrepareReference<AdvanceState>},
  };
  return kernels;
}

}  // namespace shardgraph
