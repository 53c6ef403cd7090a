#include <algorithm>
#include <memory>

#include "kernels/cpu/loops.h"
#include "kernels/random/dropout.h"
#include "kernels/random/random.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

absl::StatusOr<Prepared> PrepareDropout(const KernelContext& context) {
  const Tensor& x = context.operands[0];
  const Attributes& attributes = *context.attributes;
  const double rate = attributes.Double("rate");
  return DispatchActivation(
      x.type.dtype, [&]<typename T>(std::type_identity<T>) -> Prepared {
        return MakeKernel(
            [x = x.as<T>(), rows = x.type.dim(0), columns = x.type.dim(1),
             sequence_ids = context.operands[1].as<int64_t>(),
             run_step = context.operands[2].as<int64_t>(),
             y = context.results[0].as<T>(), seed = attributes.Int("seed"),
             name = attributes.Int("key"), threshold = DropoutThreshold(rate),
             factor = static_cast<float>(1 / (1 - rate))](Lane& lane) {
              // Tasks are ranges of blocks of four elements, never across rows.
              const int64_t blocks = (columns + 3) / 4;
              const auto run = [&](int64_t begin, int64_t end) {
                for (int64_t task = begin; task < end; ++task) {
                  const int64_t row = task / blocks;
                  const int64_t block = task % blocks;
                  const RandomKey key =
                      MakeRandomKey(seed, name, *run_step, sequence_ids[row]);
                  const PhiloxBlock words = RandomBlock(key, block);
                  const int64_t first = row * columns + block * 4;
                  const int64_t count =
                      std::min<int64_t>(4, columns - block * 4);
                  for (int64_t i = 0; i < count; ++i) {
                    y[first + i] = words[i] >= threshold
                                       ? T(float(x[first + i]) * factor)
                                       : T(0.0f);
                  }
                }
              };
              lane.pool->ParallelFor(rows * blocks, kPointwiseGrain / 4, run);
            });
      });
}

}  // namespace

absl::Span<const KernelDef> RandomCpuKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "dropout", .supports = SupportsNoF64, .prepare = PrepareDropout},
  };
  return kernels;
}

}  // namespace shardgraph
