// WeightSource: a model's weights as named tensors that are read piece by
// piece, whatever holds them.
#ifndef FSDP_CHECKPOINT_WEIGHT_SOURCE_H_
#define FSDP_CHECKPOINT_WEIGHT_SOURCE_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/safetensors.h"

namespace shardgraph {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Each parameter of the model once, in the model's order, under the model's
  // name; floating dtypes.
  virtual absl::Span<const SafetensorsWriter::Tensor> tensors() const = 0;
  // Fills `bytes` with the elements from `begin` on of tensor number `tensor`,
  // in its dtype, row-major. Errors name the file.
  virtual absl::Status Read(size_t tensor, int64_t begin,
                            absl::Span<char> bytes) = 0;
};

// Bytes that are read and written at a time.
inline constexpr int64_t kWeightChunkBytes = 4 << 20;

// Hands out a whole tensor, kWeightChunkBytes at a time.
absl::Status ReadWeight(
    WeightSource& source, size_t tensor,
    absl::FunctionRef<absl::Status(absl::string_view bytes)> take);

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_WEIGHT_SOURCE_H_
