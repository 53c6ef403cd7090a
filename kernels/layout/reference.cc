#include "kernels/layout/layout.h"
#include "kernels/reference/reference_kernel.h"

namespace shardgraph {
namespace {

void Fill(const ReferenceCall& call) {
  for (int64_t i = 0; i < call.result(0).size(); ++i)
    call.Store(0, i, call.attributes().Double("value"));
}

void KvWrite(const ReferenceCall& call) {
  const Elements& rows = call.operand(1);
  const Elements& cache = call.result(0);
  const int64_t position = static_cast<int64_t>(call.operand(2).Get());
  for (int64_t b = 0; b < rows.dim(0); ++b) {
    for (int64_t t = 0; t < rows.dim(1); ++t) {
      if (position + t < 0 || position + t >= cache.dim(1)) continue;
      for (int64_t k = 0; k < rows.dim(2); ++k) {
        for (int64_t d = 0; d < rows.dim(3); ++d)
          cache.Set(rows.Get(b, t, k, d), b, position + t, k, d);
      }
    }
  }
}

void TakeShard(const ReferenceCall& call) {
  const int64_t n = call.result(0).size();
  for (int64_t i = 0; i < n; ++i)
    call.Store(0, i, call.operand(0).GetFlat(call.rank() * n + i));
}

}  // namespace

absl::Span<const KernelDef> LayoutReferenceKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "fill", .prepare = PrepareReference<Fill>},
      {.op = "kv_write", .prepare = PrepareReference<KvWrite>},
      {.op = "take_shard", .prepare = PrepareReference<TakeShard>},
  };
  return kernels;
}

}  // namespace shardgraph
