#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/target.h"
#include "kernels/matmul/column_sum.h"
#include "kernels/norm/norm.h"
#include "kernels/norm/norm_row.h"
#include "kernels/pointwise/pointwise_run.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

// The target for activations of this type.
CpuTarget TargetFor(ElementType type) {
  return type == ElementType::kF16 ? CpuTarget::kBaseline : BestCpuTarget();
}

// The norm of x, or of the sum of two operands, which is then the first result.
template <bool kCentered, bool kOfSum>
absl::StatusOr<Prepared> PrepareNorm(const KernelContext& context) {
  const Tensor& x = context.operands[0];
  const Attributes& attributes = *context.attributes;
  NormRows rows;
  rows.type = ElementTypeOf(x.type.dtype);
  rows.columns = x.type.dim(-1);
  rows.centered = kCentered;
  rows.epsilon = static_cast<float>(attributes.Double("epsilon"));
  rows.weight = context.operands[1 + kOfSum].data;
  if (kCentered && attributes.Int("bias") != 0)
    rows.bias = context.operands[2 + kOfSum].data;
  const Tensor& b = context.operands[kOfSum ? 1 : 0];
  const absl::Span<const Tensor> results = context.results.subspan(kOfSum);
  const CpuTarget target = TargetFor(rows.type);
  // So many rows are added at once as leave the sums in the first cache.
  const int64_t rows_of_sum =
      std::max<int64_t>(1, 4096 / std::max<int64_t>(1, rows.columns));
  const bool contiguous = x.type.contiguous() && b.type.contiguous();
  return MakeKernel(
      [rows, rows_of_sum, contiguous, layout = RowLayout(x.type),
       x = x.as<char>(), b_layout = RowLayout(b.type), b = b.as<char>(),
       sum = context.results[0].as<char>(), y = results[0].as<char>(),
       mean = kCentered ? results[1].as<float>() : nullptr,
       rstd = results[kCentered ? 2 : 1].as<float>(),
       add = ForTarget(target, &baseline::RunPointwise, &avx2::RunPointwise,
                       &avx512::RunPointwise),
       forward = ForTarget(target, &baseline::NormForward, &avx2::NormForward,
                           &avx512::NormForward)](Lane& lane) {
        const int64_t size = SizeOfElement(rows.type);
        const auto add_rows = [&](int64_t begin, int64_t end) {
          PointwiseRun run = {.function = Pointwise::kAdd, .type = rows.type};
          const int64_t step = contiguous ? end - begin : 1;
          run.n = step * rows.columns;
          for (int64_t row = begin; row < end; row += step) {
            run.in[0] = x + layout.Offset(row) * size;
            run.in[1] = b + b_layout.Offset(row) * size;
            run.out[0] = sum + row * rows.columns * size;
            add(run);
          }
        };
        const auto run = [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const int64_t at = row * rows.columns * size;
            if (kOfSum && (row - begin) % rows_of_sum == 0)
              add_rows(row, std::min(end, row + rows_of_sum));
            const char* const in =
                kOfSum ? sum + at : x + layout.Offset(row) * size;
            const NormStatistics statistics = forward(rows, in, y + at);
            if (kCentered) mean[row] = statistics.mean;
            rstd[row] = statistics.rstd;
          }
        };
        lane.pool->ParallelFor(layout.rows(), RowGrain(rows.columns), run);
      });
}

// Rows are cut into blocks by their number alone; each block sums its part of
// the weight gradients in the workspace, and the parts are added in order.
constexpr int64_t kMaxBlocks = 32;
constexpr int64_t kMinRowsPerBlock = 16;

int64_t RowsPerBlock(int64_t rows) {
  return std::max(kMinRowsPerBlock, (rows + kMaxBlocks - 1) / kMaxBlocks);
}
int64_t NumBlocks(int64_t rows) {
  return (rows + RowsPerBlock(rows) - 1) / RowsPerBlock(rows);
}

// One float for each block, weight gradient that is wanted, and column.
int64_t GradientWorkspace(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          absl::Span<const TensorType> results) {
  const RowLayout layout(operands[1]);
  int64_t sums = 0;
  for (int r = 1; r < static_cast<int>(results.size()); ++r)
    sums += !Omits(attributes, r);
  return NumBlocks(layout.rows()) * sums * layout.columns() *
         static_cast<int64_t>(sizeof(float));
}

template <bool kCentered>
absl::StatusOr<Prepared> PrepareGradient(const KernelContext& context) {
  const int64_t accumulate = context.attributes->Int("accumulate");
  const Tensor& dy = context.operands[0];
  const Tensor& x = context.operands[1];
  NormRows rows;
  rows.type = ElementTypeOf(x.type.dtype);
  rows.columns = x.type.dim(-1);
  rows.centered = kCentered;
  rows.weight = context.operands[2].data;
  rows.accumulate = (accumulate & 1) != 0;
  // Sums over blocks of rows, to be added up.
  const int64_t blocks = NumBlocks(RowLayout(x.type).rows());
  float* const partial = context.workspace.as<float>();
  std::vector<ColumnSum> sums;
  std::array<int64_t, 2> at = {-1, -1};  // of dweight and dbias in a block
  for (int r = 1; r < static_cast<int>(context.results.size()); ++r) {
    if (Omits(*context.attributes, r)) continue;
    const Tensor& result = context.results[r];
    at[r - 1] = static_cast<int64_t>(sums.size()) * rows.columns;
    ColumnSum sum;
    sum.x = partial + at[r - 1];
    sum.rows = blocks;
    sum.columns = rows.columns;
    sum.y = result.data;
    sum.y_type = ElementTypeOf(result.type.dtype);
    sum.accumulate = (accumulate >> r & 1) != 0;
    sums.push_back(sum);
  }
  const int64_t stride = static_cast<int64_t>(sums.size()) * rows.columns;
  for (ColumnSum& sum : sums) sum.row_stride = stride;
  return MakeKernel(
      [rows, sums = std::move(sums), partial, stride, at, blocks,
       dy_layout = RowLayout(dy.type), x_layout = RowLayout(x.type),
       dy = dy.as<char>(), x = x.as<char>(),
       mean = kCentered ? context.operands[3].as<float>() : nullptr,
       rstd = context.operands[kCentered ? 4 : 3].as<float>(),
       dx = Omits(*context.attributes, 0) ? nullptr
                                          : context.results[0].as<char>(),
       gradient =
           ForTarget(TargetFor(rows.type), &baseline::NormGradient,
                     &avx2::NormGradient, &avx512::NormGradient)](Lane& lane) {
        const int64_t size = SizeOfElement(rows.type);
        const int64_t num_rows = x_layout.rows();
        const int64_t per_block = RowsPerBlock(num_rows);
        const auto run = [&](int64_t begin, int64_t end) {
          for (int64_t block = begin; block < end; ++block) {
            float* const sum = partial + block * stride;
            float* const dweight = at[0] < 0 ? nullptr : sum + at[0];
            float* const dbias = at[1] < 0 ? nullptr : sum + at[1];
            std::fill(sum, sum + stride, 0.0f);
            const int64_t last = std::min(num_rows, (block + 1) * per_block);
            for (int64_t row = block * per_block; row < last; ++row) {
              gradient(rows, dy + dy_layout.Offset(row) * size,
                       x + x_layout.Offset(row) * size,
                       {kCentered ? mean[row] : 0.0f, rstd[row]},
                       dx == nullptr ? nullptr : dx + row * rows.columns * size,
                       dweight, dbias);
            }
          }
        };
        lane.pool->ParallelFor(blocks, 1, run);
        for (const ColumnSum& sum : sums) RunColumnSum(sum, *lane.pool);
      });
}

}  // namespace

absl::Span<const KernelDef> NormCpuKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "layer_norm",
       .supports = SupportsNoF64,
       .prepare = PrepareNorm<true, false>},
      {.op = "layer_norm_gradient",
       .supports = SupportsNoF64,
       .workspace = GradientWorkspace,
       .prepare = PrepareGradient<true>},
      {.op = "rms_norm",
       .supports = SupportsNoF64,
       .prepare = PrepareNorm<false, false>},
      {.op = "rms_norm_gradient",
       .supports = SupportsNoF64,
       .workspace = GradientWorkspace,
       .prepare = PrepareGradient<false>},
      {.op = "add_layer_norm",
       .supports = SupportsNoF64,
       .prepare = PrepareNorm<true, true>},
      {.op = "add_rms_norm",
       .supports = SupportsNoF64,
       .prepare = PrepareNorm<false, true>},
  };
  return kernels;
}

}  // namespace shardgraph
