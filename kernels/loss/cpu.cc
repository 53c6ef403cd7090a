#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/target.h"
#include "kernels/loss/loss.h"
#include "kernels/loss/loss_row.h"
#include "kernels/matmul/gemm.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// Work of one task of the softmax.
constexpr int64_t kLogitsPerTask = 16384;

// How the workspace is divided: losses of a chunk's rows, logits, scratch
// memory of products.
struct Layout {
  int64_t logits = 0;  // where they begin
  int64_t scratch = 0;
  int64_t scratch_bytes = 0;

  Layout(const Attributes& attributes, const TensorType& x,
         const TensorType& weight) {
    const int64_t rows = ChunkRows(attributes, x);
    const int64_t vocabulary = weight.dim(0), width = x.dim(1);
    logits = RoundUp(rows * 4);
    scratch = logits + RoundUp(rows * vocabulary * SizeOf(x.dtype));
    scratch_bytes = std::max(GemmScratchBytes(rows, vocabulary, width),
                             GemmScratchBytes(vocabulary, width, rows));
  }
  static int64_t RoundUp(int64_t bytes) { return (bytes + 255) / 256 * 256; }
};

int64_t Workspace(const Attributes& attributes,
                  absl::Span<const TensorType> operands,
                  absl::Span<const TensorType>) {
  const Layout layout(attributes, operands[0], operands[1]);
  return layout.scratch + layout.scratch_bytes;
}

absl::Status CheckTaken(DType dtype) {
  if (GemmTakes(dtype)) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(DTypeName(dtype), "; F32 and BF16 are supported"));
}

absl::Status SupportsHead(const Attributes&,
                          absl::Span<const TensorType> operands,
                          absl::Span<const TensorType>) {
  return CheckTaken(operands[0].dtype);
}

absl::Status SupportsHeadGradient(const Attributes&,
                                  absl::Span<const TensorType> operands,
                                  absl::Span<const TensorType> results) {
  SG_RETURN_IF_ERROR(CheckTaken(operands[0].dtype));
  return CheckTaken(results[2].dtype);
}

Tensor Rows(const Tensor& tensor, int64_t begin, int64_t rows) {
  const TensorType& type = tensor.type;
  return Tensor{
      tensor.as<char>() + begin * type.strides[0] * SizeOf(type.dtype),
      TensorType(type.dtype, {rows, type.dim(1)}, type.strides)};
}

class CrossEntropyHead {
 public:
  explicit CrossEntropyHead(const KernelContext& context)
      : gradient_(context.results.size() == 3),
        accumulate_(context.attributes->Int("accumulate") != 0),
        chunk_rows_(ChunkRows(*context.attributes, context.operands[0].type)),
        x_(context.operands[0]),
        weight_(context.operands[1]),
        targets_(context.operands[2].as<int32_t>()),
        stats_(context.results[0].as<double>()),
        losses_(context.workspace.as<float>()),
        smoothing_(context.attributes->Double("label_smoothing")),
        z_loss_(context.attributes->Double("z_loss")) {
    const Layout layout(*context.attributes, x_.type, weight_.type);
    logits_ = context.workspace.as<char>() + layout.logits;
    options_.scratch = context.workspace.as<char>() + layout.scratch;
    options_.scratch_bytes = layout.scratch_bytes;
    if (!gradient_) return;
    wants_dx_ = !Omits(*context.attributes, 1);
    wants_dweight_ = !Omits(*context.attributes, 2);
    loss_scale_ = context.operands[3].as<float>();
    nominal_tokens_ = context.operands[4].as<double>();
    dx_ = context.results[1];
    dweight_ = context.results[2];
  }

  void operator()(Lane& lane) const {
    double loss = 0;
    double count = 0;
    const int64_t n = x_.type.dim(0);
    int64_t first = 0;
    do {  // once for no rows at all: dweight may have to become zero
      const int64_t rows = std::min(chunk_rows_, n - first);
      Chunk(first, rows, lane.pool);
      for (int64_t i = 0; i < rows; ++i) {
        if (!HasTarget(first + i)) continue;
        loss += losses_[i];
        ++count;
      }
      first += rows;
    } while (first < n);
    stats_[0] = loss;
    stats_[1] = count;
  }

 private:
  int64_t vocabulary() const { return weight_.type.dim(0); }

  bool HasTarget(int64_t n) const {
    return targets_[n] >= 0 && targets_[n] < vocabulary();
  }

  void Chunk(int64_t first, int64_t rows, ThreadPool* pool) const {
    const Tensor x = Rows(x_, first, rows);
    const Tensor logits{logits_,
                        TensorType(x.type.dtype, {rows, vocabulary()})};
    GemmProblem forward;
    forward.m = rows;
    forward.n = vocabulary();
    forward.k = x.type.dim(1);
    forward.a = AsGemmMatrix(x);
    forward.b = Transposed(AsGemmMatrix(weight_));
    SetGemmResult(logits, &forward);
    RunGemm(forward, pool, options_);
    const int64_t grain = 1 + kLogitsPerTask / (1 + vocabulary());
    pool->ParallelFor(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) Row(first + i, i);
    });
    if (wants_dx_) GradientOfX(first, rows, logits, pool);
    if (wants_dweight_) GradientOfWeight(first, x, logits, pool);
  }

  void GradientOfX(int64_t first, int64_t rows, const Tensor& logits,
                   ThreadPool* pool) const {
    GemmProblem to_x;
    to_x.m = rows;
    to_x.n = x_.type.dim(1);
    to_x.k = vocabulary();
    to_x.a = AsGemmMatrix(logits);
    to_x.b = AsGemmMatrix(weight_);
    SetGemmResult(Rows(dx_, first, rows), &to_x);
    RunGemm(to_x, pool, options_);
  }

  void GradientOfWeight(int64_t first, const Tensor& x, const Tensor& logits,
                        ThreadPool* pool) const {
    GemmProblem to_weight;
    to_weight.m = vocabulary();
    to_weight.n = x.type.dim(1);
    to_weight.k = x.type.dim(0);
    to_weight.a = Transposed(AsGemmMatrix(logits));
    to_weight.b = AsGemmMatrix(x);
    SetGemmResult(dweight_, &to_weight);
    to_weight.accumulate = accumulate_ || first > 0;
    RunGemm(to_weight, pool, options_);
  }

  // Row n, the chunk's i-th: its loss; its logits become their gradient.
  void Row(int64_t n, int64_t i) const {
    LogSumExpFunction* const log_sum_exp = SG_BEST_CPU_TARGET(LogSumExp);
    ScaledSoftmaxFunction* const scaled_softmax =
        SG_BEST_CPU_TARGET(ScaledSoftmax);
    const bool bf16 = x_.type.dtype == DType::kBF16;
    const int64_t row_bytes = vocabulary() * SizeOf(x_.type.dtype);
    void* const row = logits_ + i * row_bytes;
    if (!HasTarget(n)) {
      if (gradient_) std::memset(row, 0, row_bytes);
      return;
    }
    const int32_t target = targets_[n];
    const LogSum sum = log_sum_exp(row, bf16, vocabulary());
    const float logit =
        bf16 ? static_cast<float>(static_cast<BFloat16*>(row)[target])
             : static_cast<float*>(row)[target];
    const float log_probability = logit - sum.max - sum.log_sum;
    losses_[i] = -log_probability;
    const float smoothing = static_cast<float>(smoothing_);
    const float share = static_cast<float>(smoothing_ / vocabulary());
    const float log_sum = sum.max + sum.log_sum;
    if (smoothing > 0) {
      const float below =
          SG_BEST_CPU_TARGET(SumBelow)(row, bf16, vocabulary(), sum.max);
      losses_[i] = (1 - smoothing) * losses_[i] +
                   smoothing * (sum.log_sum - below / vocabulary());
    }
    if (z_loss_ > 0)
      losses_[i] += static_cast<float>(z_loss_) * log_sum * log_sum;
    if (!gradient_) return;
    const float scale = static_cast<float>(*loss_scale_ / *nominal_tokens_);
    const float drift = static_cast<float>(2 * z_loss_) * log_sum;
    scaled_softmax(row, bf16, vocabulary(), sum, (1 + drift) * scale,
                   -share * scale);
    // expm1: no digits are lost where the probability is near 1.
    const float at_target =
        (std::expm1(log_probability) + drift * std::exp(log_probability) +
         (smoothing - share)) *
        scale;
    if (bf16) {
      static_cast<BFloat16*>(row)[target] = BFloat16(at_target);
    } else {
      static_cast<float*>(row)[target] = at_target;
    }
  }

  const bool gradient_;
  const bool accumulate_;
  const int64_t chunk_rows_;
  Tensor x_;
  Tensor weight_;
  const int32_t* targets_;
  double* stats_;
  float* losses_;
  const double smoothing_;
  const double z_loss_;
  char* logits_;
  GemmOptions options_;
  bool wants_dx_ = false;
  bool wants_dweight_ = false;
  const float* loss_scale_ = nullptr;
  const double* nominal_tokens_ = nullptr;
  Tensor dx_;
  Tensor dweight_;
};

absl::StatusOr<std::unique_ptr<PreparedKernel>> Prepare(
    const KernelContext& context) {
  return MakeKernel(CrossEntropyHead(context));
}

constexpr KernelDef kKernels[] = {
    {.op = "cross_entropy_head",
     .supports = SupportsHead,
     .workspace = Workspace,
     .prepare = Prepare},
    {.op = "cross_entropy_head_gradient",
     .supports = SupportsHeadGradient,
     .workspace = Workspace,
     .prepare = Prepare},
};

}  // namespace

absl::Span<const KernelDef> LossCpuKernels() { return kKernels; }

}  // namespace shardgraph
