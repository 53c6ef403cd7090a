#include "kernels/random/dropout_run.h"

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector.h"
#include "kernels/random/random_vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

template <typename T>
void Run(const DropoutRun& run) {
  constexpr int64_t kStep = 4 * kWidth;
  const T* const x = static_cast<const T*>(run.x);
  T* const y = static_cast<T*>(run.y);
  const WordVector threshold = WordVector{} + run.threshold;
  for (int64_t i = 0; i < run.n; i += kStep) {
    uint32_t numbers[kStep];
    RandomBlocks(run.key, run.stream, run.block + i / 4, numbers);
    const auto drop = [&](int64_t at, Vector value) {
      WordVector number;
      std::memcpy(&number, numbers + at, sizeof(number));
      return number >= threshold ? value * run.factor : Vector{};
    };
    ForVectors(
        run.n - i < kStep ? run.n - i : kStep,
        [&](int64_t at) {
          StoreVector(drop(at, LoadVector(x + i + at)), y + i + at);
        },
        [&](int64_t at, int64_t count) {
          StorePart(drop(at, LoadPart(x + i + at, count)), count, y + i + at);
        });
  }
}

}  // namespace

void RunDropout(const DropoutRun& run) {
  switch (run.type) {
    case ElementType::kF32:
      return Run<float>(run);
    case ElementType::kBF16:
      return Run<uint16_t>(run);
    case ElementType::kF16:
      if constexpr (kHasFloat16) Run<Float16Bits>(run);
      return;
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
