// Memory of one tensor in a test, with sentinel bytes before and behind it and
// in the gaps between its elements.
#ifndef KERNELS_TESTING_GUARDED_TENSOR_H_
#define KERNELS_TESTING_GUARDED_TENSOR_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace shardgraph {

class GuardedTensor {
 public:
  // NaN in every floating dtype: what must not be read.
  static constexpr uint8_t kPoison = 0xff;
  // What must not be written.
  static constexpr uint8_t kSentinel = 0xa5;

  // Elements hold kPoison; guards and gaps hold `gap`. Data starts at a
  // multiple of 256 bytes plus `misalignment` bytes.
  GuardedTensor(const TensorType& type, uint8_t gap, int64_t misalignment);
  GuardedTensor(GuardedTensor&&) = default;

  const Tensor& tensor() const { return tensor_; }
  // Guards, elements and gaps.
  absl::Span<uint8_t> bytes() { return absl::MakeSpan(bytes_); }
  // Where the tensor's data begins in bytes().
  int64_t data_offset() const {
    return static_cast<const uint8_t*>(tensor_.data) - bytes_.data();
  }
  // True while guards and gaps hold what they were made with.
  bool GapsIntact() const;
  // Remembers all bytes; Unchanged compares with them.
  void Snapshot() { snapshot_ = bytes_; }
  bool Unchanged() const { return bytes_ == snapshot_; }
  // The bytes of the elements, row-major, without gaps.
  std::vector<uint8_t> ElementBytes() const;

 private:
  std::vector<uint8_t> bytes_;
  std::vector<uint8_t> snapshot_;
  std::vector<bool> is_element_;  // per byte
  uint8_t gap_;
  Tensor tensor_;
};

}  // namespace shardgraph

#endif  // KERNELS_TESTING_GUARDED_TENSOR_H_
