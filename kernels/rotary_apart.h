// Attention with rotary positions by two kernels of a backend: rotary turns q
// and k into workspace, and attention runs on them there; of its gradient, dq
// and dk are turned back. The same bits as the ops apart. For backends and
// dtypes whose attention turns nothing by itself; a backend lists it before its
// own kernels, and behind kernels/widened.h, which rounds less.
#ifndef KERNELS_ROTARY_APART_H_
#define KERNELS_ROTARY_APART_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/composed.h"
#include "kernels/kernel.h"

namespace shardgraph {

// Unimplemented where has_rotary is 0.
absl::StatusOr<Composition> ComposeRotaryApart(
    absl::string_view op, const Attributes& attributes,
    absl::Span<const TensorType> operands,
    absl::Span<const TensorType> results);

template <const KernelTable& (*table)()>
absl::Span<const KernelDef> RotaryApartKernels() {
  static constexpr KernelDef kernels[] = {
      ComposedKernel<table, ComposeRotaryApart, "attention">(),
      ComposedKernel<table, ComposeRotaryApart, "attention_gradient">(),
  };
  return kernels;
}

}  // namespace shardgraph

#endif  // KERNELS_ROTARY_APART_H_
