// Boxes: ranges of a row-major tensor as N-D boxes and back.
//
// Shards cut flat ranges, which may start and end inside a row. Files hold
// boxes, so that anything that reads tensors can read them.
#ifndef FSDP_CHECKPOINT_BOXES_H_
#define FSDP_CHECKPOINT_BOXES_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace shardgraph {

struct Box {
  Dims offset;
  Dims size;

  int64_t numel() const { return NumElements(size); }
};

// The fewest boxes that make up elements [begin, begin + elements) of a tensor,
// in order; at most 2 x rank - 1. Each is contiguous in the tensor.
std::vector<Box> BoxesOfRange(absl::Span<const int64_t> shape, int64_t begin,
                              int64_t elements);

// Calls `run(first element in the tensor, first element in the box, elements)`
// for each run of the box that is contiguous in the tensor, in order, until one
// fails. The box lies inside the shape.
absl::Status ForEachRun(
    absl::Span<const int64_t> shape, const Box& box,
    absl::FunctionRef<absl::Status(int64_t in_tensor, int64_t in_box,
                                   int64_t elements)>
        run);

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_BOXES_H_
