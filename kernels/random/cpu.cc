#include <algorithm>
#include <memory>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/target.h"
#include "kernels/random/dropout.h"
#include "kernels/random/dropout_run.h"
#include "kernels/random/random.h"

namespace shardgraph {
namespace {

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareDropout(
    const KernelContext& context) {
  const Tensor& x = context.operands[0];
  const Attributes& attributes = *context.attributes;
  const double rate = attributes.Double("rate");
  DropoutRun run;
  run.type = ElementTypeOf(x.type.dtype);
  run.threshold = DropoutThreshold(rate);
  run.factor = static_cast<float>(1 / (1 - rate));
  return MakeKernel(
      [run, x = x.as<char>(), rows = x.type.dim(0), columns = x.type.dim(1),
       sequence_ids = context.operands[1].as<int64_t>(),
       run_step = context.operands[2].as<int64_t>(),
       y = context.results[0].as<char>(), seed = attributes.Int("seed"),
       name = attributes.Int("key"),
       function = ForTarget(run.type == ElementType::kF16 ? CpuTarget::kBaseline
                                                          : BestCpuTarget(),
                            &baseline::RunDropout, &avx2::RunDropout,
                            &avx512::RunDropout)](Lane& lane) {
        // Tasks are ranges of blocks of four elements, which end with a row.
        const int64_t blocks = (columns + 3) / 4;
        const int64_t size = SizeOfElement(run.type);
        const auto body = [&](int64_t begin, int64_t end) {
          while (begin < end) {
            const int64_t row = begin / blocks;
            const int64_t block = begin % blocks;
            const int64_t count = std::min(end - begin, blocks - block);
            const RandomKey key =
                MakeRandomKey(seed, name, *run_step, sequence_ids[row]);
            const int64_t offset = (row * columns + block * 4) * size;
            DropoutRun part = run;
            part.key = key.key;
            part.stream = key.stream;
            part.block = block;
            part.n = std::min(count * 4, columns - block * 4);
            part.x = x + offset;
            part.y = y + offset;
            function(part);
            begin += count;
          }
        };
        lane.pool->ParallelFor(rows * blocks, kPointwiseGrain / 4, body);
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
