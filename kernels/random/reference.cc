#include "kernels/random/dropout.h"
#include "kernels/random/random.h"
#include "kernels/reference/reference_kernel.h"

namespace shardgraph {
namespace {

void Dropout(const ReferenceCall& call) {
  const Elements& x = call.operand(0);
  const double rate = call.attributes().Double("rate");
  const uint32_t threshold = DropoutThreshold(rate);
  const double factor = RoundTo(
      x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32, 1 / (1 - rate));
  for (int64_t b = 0; b < x.dim(0); ++b) {
    const RandomKey key = MakeRandomKey(
        call.attributes().Int("seed"), call.attributes().Int("key"),
        static_cast<int64_t>(call.operand(2).Get()),
        static_cast<int64_t>(call.operand(1).Get(b)));
    for (int64_t e = 0; e < x.dim(1); ++e) {
      const bool keep = DropoutKeeps(key, e, threshold);
      call.Store(0, b * x.dim(1) + e, keep ? x.Get(b, e) * factor : 0);
    }
  }
}

}  // namespace

absl::Span<const KernelDef> RandomReferenceKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "dropout", .prepare = PrepareReference<Dropout>},
  };
  return kernels;
}

}  // namespace shardgraph
