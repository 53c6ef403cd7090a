#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "kernels/random/random.h"
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
  const auto policy =
      static_cast<NonFinite>(call.attributes().Int("non_finite"));
  const bool bad = !std::isfinite(sum);
  const bool stop =
      call.operand(4).Get() != 0 || (bad && policy == NonFinite::kStop);
  const bool found_inf = policy != NonFinite::kIgnore && (bad || stop);
  call.result(0).Set(norm);
  call.result(1).Set(found_inf ? 0.0 : average * clip);
  call.result(2).Set(found_inf);
  call.result(3).Set(stop);
}

void UpdateLossScale(const ReferenceCall& call) {
  const double scale = call.operand(0).Get();
  double counter = call.operand(1).Get() + 1, next = scale;
  if (call.operand(2).Get() != 0) {
    next = scale * call.attributes().Double("backoff");
    counter = 0;
  } else if (counter == call.attributes().Int("interval")) {
    const float grown =
        static_cast<float>(scale * call.attributes().Double("growth"));
    if (std::isfinite(grown)) next = grown;
    counter = 0;
  }
  call.result(0).Set(next);
  call.result(1).Set(counter);
}

// One of adamw, sgd and lion: where its operands are, and what it writes.
class Update {
 public:
  Update(absl::string_view op, const ReferenceCall& call)
      : call_(call),
        places_(PlacesOf(
            op, call.attributes(),
            call.num_operands() > 2 ? call.operand(2).type() : TensorType())) {}

  // A scalar of StepState, counted from the first.
  const Elements& scalar(int i) const {
    return call_.operand(places_.scalars() + i);
  }
  double constant(absl::string_view name, int group) const {
    return GroupAttribute(call_.attributes(), name, group);
  }

  void StoreMoment(int index, double value, int64_t i) const {
    const Elements& moment = call_.result(1 + index);
    if (!places_.rounds) return moment.Set(value, i);
    const Attributes& attributes = call_.attributes();
    const RandomKey key = MakeRandomKey(
        attributes.Int("seed"), attributes.Int("key"),
        static_cast<uint64_t>(call_.operand(call_.num_operands() - 1).Get()));
    const uint32_t word =
        RandomWord(key, call_.rank() * call_.operand(0).size() + i);
    moment.Set(StochasticBFloat16(static_cast<float>(value),
                                  index == 0 ? word & 0xffffu : word >> 16),
               i);
  }
  void StoreMaster(double value, int64_t i) const {
    call_.result(0).Set(value, i);
    if (places_.has_compute)
      call_.result(places_.compute_result()).Set(call_.result(0).Get(i), i);
  }

 private:
  const ReferenceCall& call_;
  const UpdatePlaces places_;
};

void AdamW(const ReferenceCall& call) {
  const Update update("adamw", call);
  if (update.scalar(4).Get() != 0) return;
  const bool l2 = call.attributes().Int("l2") != 0;
  ForEachElement(call, [&](int64_t i, int group) {
    const double rate = update.scalar(0).Get(group);
    const double beta1 = update.constant("beta1", group);
    const double beta2 = update.constant("beta2", group);
    const double decay = update.constant("weight_decay", group);
    const double correction1 = 1 - update.scalar(1).Get(group) * beta1;
    const double correction2 = 1 - update.scalar(2).Get(group) * beta2;
    const double old = call.operand(0).Get(i);
    const double d = call.operand(1).Get(i) * update.scalar(3).Get() +
                     (l2 ? decay * old : 0);
    const double m = call.operand(2).Get(i) * beta1 + d * (1 - beta1);
    const double v = call.operand(3).Get(i) * beta2 + d * d * (1 - beta2);
    const double denominator = std::sqrt(v) / std::sqrt(correction2) +
                               update.constant("epsilon", group);
    update.StoreMaster(old * (l2 ? 1 : 1 - rate * decay) -
                           rate / correction1 * m / denominator,
                       i);
    update.StoreMoment(0, m, i);
    update.StoreMoment(1, v, i);
  });
}

void Sgd(const ReferenceCall& call) {
  const Update update("sgd", call);
  if (update.scalar(2).Get() != 0) return;
  const bool has_momentum = call.attributes().Int("has_momentum") != 0;
  ForEachElement(call, [&](int64_t i, int group) {
    const double old = call.operand(0).Get(i);
    double d = call.operand(1).Get(i) * update.scalar(1).Get() +
               old * update.constant("weight_decay", group);
    if (has_momentum) {
      d += call.operand(2).Get(i) * update.constant("momentum", group);
      update.StoreMoment(0, d, i);
    }
    update.StoreMaster(old - update.scalar(0).Get(group) * d, i);
  });
}

void Lion(const ReferenceCall& call) {
  const Update update("lion", call);
  if (update.scalar(2).Get() != 0) return;
  ForEachElement(call, [&](int64_t i, int group) {
    const double rate = update.scalar(0).Get(group);
    const double beta1 = update.constant("beta1", group);
    const double beta2 = update.constant("beta2", group);
    const double d = call.operand(1).Get(i) * update.scalar(1).Get();
    const double m = call.operand(2).Get(i);
    const double c = m * beta1 + d * (1 - beta1);
    const double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
    update.StoreMaster(
        call.operand(0).Get(i) *
                (1 - rate * update.constant("weight_decay", group)) -
            rate * sign,
        i);
    update.StoreMoment(0, m * beta2 + d * (1 - beta2), i);
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
      {.op = "update_loss_scale", .prepare = PrepareReference<UpdateLossScale>},
      {.op = "adamw", .prepare = PrepareReference<AdamW>},
      {.op = "sgd", .prepare = PrepareReference<Sgd>},
      {.op = "lion", .prepare = PrepareReference<Lion>},
      {.op = "advance_state", .prepare = PrepareReference<AdvanceState>},
  };
  return kernels;
}

}  // namespace shardgraph
