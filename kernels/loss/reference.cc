#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/check.h"
#include "kernels/loss/loss.h"
#include "kernels/reference/reference_kernel.h"

namespace shardgraph {
namespace {

// The target of row n, or -1 where it is masked.
int64_t TargetOf(const ReferenceCall& call, int64_t n) {
  const int64_t target = call.operand(2).Get(n);
  if (target == kMaskedTarget) return -1;
  SG_CHECK(target >= 0 && target < call.operand(1).dim(0))
      << "target " << target << " of row " << n << " is not in [0, "
      << call.operand(1).dim(0) << ")";
  return target;
}

// Logits of row n, rounded to x's dtype, and the log of the sum of their
// exponentials.
double Logits(const ReferenceCall& call, int64_t n, std::vector<double>* z) {
  const Elements& x = call.operand(0);
  const Elements& weight = call.operand(1);
  z->assign(weight.dim(0), 0);
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t v = 0; v < weight.dim(0); ++v) {
    double sum = 0;
    for (int64_t c = 0; c < x.dim(1); ++c)
      sum += x.Get(n, c) * weight.Get(v, c);
    (*z)[v] = RoundTo(x.dtype(), sum);
    max = std::max(max, (*z)[v]);
  }
  double sum = 0;
  for (const double logit : *z) sum += std::exp(logit - max);
  return max + std::log(sum);
}

void Head(const ReferenceCall& call) {
  double loss = 0;
  double count = 0;
  std::vector<double> z;
  for (int64_t n = 0; n < call.operand(0).dim(0); ++n) {
    const int64_t target = TargetOf(call, n);
    if (target < 0) continue;
    const double smoothing = call.attributes().Double("label_smoothing");
    const double lse = Logits(call, n, &z);
    double mean = 0;
    for (const double logit : z) mean += logit / z.size();
    loss += lse - (1 - smoothing) * z[target] - smoothing * mean +
            call.attributes().Double("z_loss") * lse * lse;
    ++count;
  }
  call.result(0).Set(loss, 0);
  call.result(0).Set(count, 1);
}

void HeadGradient(const ReferenceCall& call) {
  Head(call);
  const Elements& x = call.operand(0);
  const Elements& weight = call.operand(1);
  const double scale = call.operand(3).Get() / call.operand(4).Get();
  const int64_t width = x.dim(1);
  std::vector<double> dweight(weight.size());
  std::vector<double> z;
  for (int64_t n = 0; n < x.dim(0); ++n) {
    std::vector<double> dx(width);
    const int64_t target = TargetOf(call, n);
    if (target >= 0) {
      const double smoothing = call.attributes().Double("label_smoothing");
      const double lse = Logits(call, n, &z);
      for (int64_t v = 0; v < weight.dim(0); ++v) {
        const double p = std::exp(z[v] - lse) *
                         (1 + 2 * call.attributes().Double("z_loss") * lse);
        const double wanted =
            (v == target ? 1 - smoothing : 0) + smoothing / z.size();
        const double dz = RoundTo(x.dtype(), (p - wanted) * scale);
        for (int64_t c = 0; c < width; ++c) {
          dx[c] += dz * weight.Get(v, c);
          dweight[v * width + c] += dz * x.Get(n, c);
        }
      }
    }
    if (Omits(call.attributes(), 1)) continue;
    for (int64_t c = 0; c < width; ++c) call.result(1).Set(dx[c], n, c);
  }
  if (Omits(call.attributes(), 2)) return;
  for (int64_t i = 0; i < weight.size(); ++i) call.Store(2, i, dweight[i]);
}

constexpr KernelDef kKernels[] = {
    {.op = "cross_entropy_head", .prepare = PrepareReference<Head>},
    {.op = "cross_entropy_head_gradient",
     .prepare = PrepareReference<HeadGradient>},
};

}  // namespace

absl::Span<const KernelDef> LossReferenceKernels() { return kKernels; }

}  // namespace shardgraph
