#include "kernels/testing/guarded_tensor.h"

#include <algorithm>

#include "kernels/reference/access.h"

namespace shardgraph {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr int64_t kAlignment = 256;

}  // namespace

GuardedTensor::GuardedTensor(const TensorType& type, uint8_t gap,
                             int64_t misalignment)
    : gap_(gap) {
  const int64_t span = type.span_bytes();
  bytes_.assign(kAlignment + kGuardBytes + misalignment + span + kGuardBytes,
                gap);
  is_element_.assign(bytes_.size(), false);
  const int64_t base = reinterpret_cast<uintptr_t>(bytes_.data()) % kAlignment;
  const int64_t start =
      (kAlignment - base) % kAlignment + kGuardBytes + misalignment;
  tensor_ = Tensor{bytes_.data() + start, type};
  const int64_t size = SizeOf(type.dtype);
  const int64_t n = type.num_elements();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = start + OffsetOf(type, i) * size;
    std::fill_n(bytes_.begin() + at, size, kPoison);
    std::fill_n(is_element_.begin() + at, size, true);
  }
}

bool GuardedTensor::GapsIntact() const {
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if (!is_element_[i] && bytes_[i] != gap_) return false;
  }
  return true;
}

std::vector<uint8_t> GuardedTensor::ElementBytes() const {
  const TensorType& type = tensor_.type;
  const int64_t size = SizeOf(type.dtype);
  const int64_t n = type.num_elements();
  std::vector<uint8_t> bytes(n * size);
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(tensor_.as<uint8_t>() + OffsetOf(type, i) * size, size,
                bytes.begin() + i * size);
  }
  return bytes;
}

}  // namespace shardgraph
