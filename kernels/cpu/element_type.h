// The dtypes of activations, for interfaces of plain structs
// (kernels/cpu/target.h says why).
#ifndef KERNELS_CPU_ELEMENT_TYPE_H_
#define KERNELS_CPU_ELEMENT_TYPE_H_

#include <cstdint>

namespace shardgraph {

enum class ElementType : uint8_t { kF32, kBF16, kF16 };

inline constexpr int64_t SizeOfElement(ElementType type) {
  return type == ElementType::kF32 ? 4 : 2;
}

}  // namespace shardgraph

#endif  // KERNELS_CPU_ELEMENT_TYPE_H_
