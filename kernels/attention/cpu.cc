#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/cpu/target.h"
#include "kernels/matmul/gemm.h"
#include "kernels/random/random.h"

namespace shardgraph {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Heads wider than this would need larger buffers on the stack.
constexpr int64_t kMaxWidth = 256;

int64_t Blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

// [rows, D] of a tensor [B, T, H, D] at batch b, head h, from row t on.
GemmMatrix Head(const Tensor& tensor, int64_t b, int64_t h, int64_t t) {
  const TensorType& type = tensor.type;
  GemmMatrix matrix;
  matrix.bf16 = type.dtype == DType::kBF16;
  matrix.data = tensor.as<char>() + SizeOf(type.dtype) * (b * type.strides[0] +
                                                          t * type.strides[1] +
                                                          h * type.strides[2]);
  matrix.row_stride = type.strides[1];
  return matrix;
}

GemmMatrix Tile(const float* data, int64_t row_stride) {
  GemmMatrix matrix;
  matrix.data = data;
  matrix.row_stride = row_stride;
  return matrix;
}

// c (+)= a b, FP32.
void Multiply(const GemmMatrix& a, const GemmMatrix& b, int64_t m, int64_t n,
              int64_t k, bool accumulate, float* c, int64_t c_stride) {
  GemmProblem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.a = a;
  problem.b = b;
  problem.c = c;
  problem.c_row_stride = c_stride;
  problem.accumulate = accumulate;
  RunGemmHere(problem);
}

// `width` elements of row t of `tensor` at (b, h) = factor * values.
void StoreRow(const Tensor& tensor, int64_t b, int64_t t, int64_t h,
              const float* values, float factor, int64_t width) {
  const GemmMatrix row = Head(tensor, b, h, t);
  if (row.bf16) {
    auto* out = static_cast<BFloat16*>(const_cast<void*>(row.data));
    for (int64_t d = 0; d < width; ++d) out[d] = BFloat16(factor * values[d]);
  } else {
    auto* out = static_cast<float*>(const_cast<void*>(row.data));
    for (int64_t d = 0; d < width; ++d) out[d] = factor * values[d];
  }
}

template <typename T>
float Dot(const void* a, const void* b, int64_t n) {
  const T* const x = static_cast<const T*>(a);
  const T* const y = static_cast<const T*>(b);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
  return sum;
}

// Which keys a query sees and which probabilities dropout keeps.
class Visibility {
 public:
  // The optional operands start at `next`.
  Visibility(const KernelContext& context, const AttentionConfig& config,
             int next)
      : config_(config) {
    if (config.has_offset) offset_ = context.operands[next++].as<int64_t>();
    if (config.has_documents)
      documents_ = context.operands[next++].as<int32_t>();
    if (config.dropout > 0) {
      sequence_ids_ = context.operands[next].as<int64_t>();
      run_step_ = context.operands[next + 1].as<int64_t>();
    }
  }

  int64_t offset() const { return offset_ == nullptr ? 0 : *offset_; }

  // Keys [0, end) hold all that queries up to `i_end` see.
  int64_t KeysEnd(int64_t i_end) const {
    if (!config_.causal) return config_.keys;
    return std::clamp<int64_t>(i_end + offset(), 0, config_.keys);
  }

  // Sets scores of keys that are not visible to -infinity.
  void Mask(int64_t b, int64_t i_begin, int64_t j_begin, int64_t rows,
            int64_t columns, float* scores) const {
    const bool crosses =
        config_.causal && j_begin + columns - 1 > i_begin + offset();
    if (!crosses && documents_ == nullptr) return;
    for (int64_t i = 0; i < rows; ++i) {
      float* row = scores + i * kKeyBlock;
      const int64_t position = i_begin + i + offset();
      if (crosses) {
        for (int64_t j = std::max<int64_t>(position + 1 - j_begin, 0);
             j < columns; ++j)
          row[j] = kMinusInfinity;
      }
      if (documents_ != nullptr) {
        const int32_t* documents = documents_ + b * config_.keys;
        for (int64_t j = 0; j < columns; ++j) {
          if (documents[j_begin + j] != documents[position])
            row[j] = kMinusInfinity;
        }
      }
    }
  }

  // Fills `kept` and returns it; null without dropout.
  const float* Kept(int64_t b, int64_t h, int64_t i_begin, int64_t j_begin,
                    int64_t rows, int64_t columns, float* kept) const {
    if (config_.dropout == 0) return nullptr;
    const RandomKey key =
        MakeRandomKey(config_.seed, config_.key, *run_step_, sequence_ids_[b]);
    const uint32_t threshold = DropoutThreshold(config_.dropout);
    const float scale = static_cast<float>(1 / (1 - config_.dropout));
    for (int64_t i = 0; i < rows; ++i) {
      const uint64_t first =
          (h * config_.queries + i_begin + i) * config_.keys + j_begin;
      PhiloxBlock block = RandomBlock(key, first / 4);
      for (int64_t j = 0; j < columns; ++j) {
        const uint64_t index = first + j;
        if (index % 4 == 0) block = RandomBlock(key, index / 4);
        kept[i * kKeyBlock + j] = block[index % 4] >= threshold ? scale : 0;
      }
    }
    return kept;
  }

 private:
  AttentionConfig config_;
  const int64_t* offset_ = nullptr;
  const int32_t* documents_ = nullptr;
  const int64_t* sequence_ids_ = nullptr;
  const int64_t* run_step_ = nullptr;
};

absl::Status Supports(const Attributes&, absl::Span<const TensorType> operands,
                      absl::Span<const TensorType>) {
  if (!GemmTakes(operands[0].dtype)) {
    return absl::UnimplementedError(absl::StrCat(
        DTypeName(operands[0].dtype), "; F32 and BF16 are supported"));
  }
  if (operands[0].dim(3) > kMaxWidth) {
    return absl::UnimplementedError(absl::StrCat(
        "heads of width ", operands[0].dim(3), "; at most ", kMaxWidth));
  }
  return absl::OkStatus();
}

class Forward {
 public:
  explicit Forward(const KernelContext& context)
      : config_(*context.attributes, context.operands[0].type,
                context.operands[1].type),
        visibility_(context, config_, 3),
        q_(context.operands[0]),
        k_(context.operands[1]),
        v_(context.operands[2]),
        out_(context.results[0]),
        lse_(context.results[1].as<float>()) {}

  void operator()(Lane& lane) const {
    const int64_t blocks = Blocks(config_.queries, kQueryBlock);
    lane.pool->ParallelFor(config_.batch * config_.heads * blocks, 1,
                           [&](int64_t begin, int64_t end) {
                             for (int64_t i = begin; i < end; ++i) {
                               // The last queries see most keys: begin with
                               // them.
                               Block(i / blocks / config_.heads,
                                     i / blocks % config_.heads,
                                     (blocks - 1 - i % blocks) * kQueryBlock);
                             }
                           });
  }

 private:
  void Block(int64_t b, int64_t h, int64_t i) const {
    alignas(64) float scores[kQueryBlock * kKeyBlock];
    alignas(64) float kept[kQueryBlock * kKeyBlock];
    alignas(64) float out[kQueryBlock * kMaxWidth];
    float max[kQueryBlock];
    float sum[kQueryBlock] = {};
    OnlineSoftmaxFunction* const softmax =
        ForTarget(BestCpuTarget(), &baseline::OnlineSoftmax,
                  &avx2::OnlineSoftmax, &avx512::OnlineSoftmax);
    AttentionTile tile;
    tile.rows = std::min(kQueryBlock, config_.queries - i);
    tile.scale = config_.scale;
    const int64_t width = config_.width;
    const int64_t g = h / config_.heads_per_group();
    std::fill_n(max, tile.rows, kMinusInfinity);
    std::fill_n(out, tile.rows * width, 0.0f);
    const int64_t keys = visibility_.KeysEnd(i + tile.rows);
    for (int64_t j = 0; j < keys; j += kKeyBlock) {
      tile.columns = std::min(kKeyBlock, keys - j);
      Multiply(Head(q_, b, h, i), Transposed(Head(k_, b, g, j)), tile.rows,
               tile.columns, width, false, scores, kKeyBlock);
      visibility_.Mask(b, i, j, tile.rows, tile.columns, scores);
      tile.kept = visibility_.Kept(b, h, i, j, tile.rows, tile.columns, kept);
      softmax(tile, scores, max, sum, out, width);
      Multiply(Tile(scores, kKeyBlock), Head(v_, b, g, j), tile.rows, width,
               tile.columns, true, out, width);
    }
    float* lse = lse_ + (b * config_.heads + h) * config_.queries + i;
    for (int64_t r = 0; r < tile.rows; ++r) {
      StoreRow(out_, b, i + r, h, out + r * width,
               sum[r] == 0 ? 0.0f : 1 / sum[r], width);
      lse[r] = max[r] + std::log(sum[r]);  // -infinity when nothing is visible
    }
  }

  AttentionConfig config_;
  Visibility visibility_;
  Tensor q_;
  Tensor k_;
  Tensor v_;
  Tensor out_;
  float* lse_;
};

// Workspace: FP32 dq [B, H, T, D], then delta [B, H, T].
class Backward {
 public:
  explicit Backward(const KernelContext& context)
      : config_(*context.attributes, context.operands[1].type,
                context.operands[2].type),
        visibility_(context, config_, 6),
        dout_(context.operands[0]),
        q_(context.operands[1]),
        k_(context.operands[2]),
        v_(context.operands[3]),
        out_(context.operands[4]),
        lse_(context.operands[5].as<float>()),
        dq_(context.results[0]),
        dk_(context.results[1]),
        dv_(context.results[2]),
        dq_sums_(context.workspace.as<float>()),
        deltas_(dq_sums_ + q_.type.num_elements()) {}

  static int64_t Workspace(const Attributes&,
                           absl::Span<const TensorType> operands,
                           absl::Span<const TensorType>) {
    return sizeof(float) *
           (operands[1].num_elements() + operands[5].num_elements());
  }

  void operator()(Lane& lane) const {
    // One task per (batch, key head): it owns its dk, dv and the dq of the
    // heads of its group.
    lane.pool->ParallelFor(
        config_.batch * config_.kv_heads, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            Group(i / config_.kv_heads, i % config_.kv_heads);
        });
  }

 private:
  int64_t Row(int64_t b, int64_t h, int64_t i) const {
    return (b * config_.heads + h) * config_.queries + i;
  }

  void Group(int64_t b, int64_t g) const {
    const int64_t first = g * config_.heads_per_group();
    const int64_t last = first + config_.heads_per_group();
    const int64_t width = config_.width;
    for (int64_t h = first; h < last; ++h) {
      std::fill_n(dq_sums_ + Row(b, h, 0) * width, config_.queries * width,
                  0.0f);
      for (int64_t i = 0; i < config_.queries; ++i)
        deltas_[Row(b, h, i)] = Delta(b, h, i);
    }
    for (int64_t j = 0; j < config_.keys; j += kKeyBlock)
      Keys(b, g, j, first, last);
    for (int64_t h = first; h < last; ++h) {
      for (int64_t i = 0; i < config_.queries; ++i)
        StoreRow(dq_, b, i, h, dq_sums_ + Row(b, h, i) * width, 1, width);
    }
  }

  // Sum over d of dout[b, i, h, d] out[b, i, h, d].
  float Delta(int64_t b, int64_t h, int64_t i) const {
    const GemmMatrix dout = Head(dout_, b, h, i);
    const GemmMatrix out = Head(out_, b, h, i);
    return dout.bf16 ? Dot<BFloat16>(dout.data, out.data, config_.width)
                     : Dot<float>(dout.data, out.data, config_.width);
  }

  // Contributions of keys [j, j + kKeyBlock) to all three gradients.
  void Keys(int64_t b, int64_t g, int64_t j, int64_t first,
            int64_t last) const {
    alignas(64) float scores[kQueryBlock * kKeyBlock];
    alignas(64) float dp[kQueryBlock * kKeyBlock];
    alignas(64) float kept[kQueryBlock * kKeyBlock];
    alignas(64) float dk[kKeyBlock * kMaxWidth];
    alignas(64) float dv[kKeyBlock * kMaxWidth];
    ScoreGradientFunction* const gradient =
        ForTarget(BestCpuTarget(), &baseline::ScoreGradient,
                  &avx2::ScoreGradient, &avx512::ScoreGradient);
    AttentionTile tile;
    tile.columns = std::min(kKeyBlock, config_.keys - j);
    tile.scale = config_.scale;
    const int64_t width = config_.width;
    std::fill_n(dk, tile.columns * width, 0.0f);
    std::fill_n(dv, tile.columns * width, 0.0f);
    // Causal: earlier queries see none of these keys.
    const int64_t i_begin = config_.causal ? j / kQueryBlock * kQueryBlock : 0;
    for (int64_t h = first; h < last; ++h) {
      for (int64_t i = i_begin; i < config_.queries; i += kQueryBlock) {
        tile.rows = std::min(kQueryBlock, config_.queries - i);
        Multiply(Head(q_, b, h, i), Transposed(Head(k_, b, g, j)), tile.rows,
                 tile.columns, width, false, scores, kKeyBlock);
        visibility_.Mask(b, i, j, tile.rows, tile.columns, scores);
        tile.kept = visibility_.Kept(b, h, i, j, tile.rows, tile.columns, kept);
        Multiply(Head(dout_, b, h, i), Transposed(Head(v_, b, g, j)), tile.rows,
                 tile.columns, width, false, dp, kKeyBlock);
        gradient(tile, lse_ + Row(b, h, i), deltas_ + Row(b, h, i), scores, dp);
        Multiply(Transposed(Tile(scores, kKeyBlock)), Head(dout_, b, h, i),
                 tile.columns, width, tile.rows, true, dv, width);
        Multiply(Transposed(Tile(dp, kKeyBlock)), Head(q_, b, h, i),
                 tile.columns, width, tile.rows, true, dk, width);
        Multiply(Tile(dp, kKeyBlock), Head(k_, b, g, j), tile.rows, width,
                 tile.columns, true, dq_sums_ + Row(b, h, i) * width, width);
      }
    }
    for (int64_t r = 0; r < tile.columns; ++r) {
      StoreRow(dk_, b, j + r, g, dk + r * width, 1, width);
      StoreRow(dv_, b, j + r, g, dv + r * width, 1, width);
    }
  }

  AttentionConfig config_;
  Visibility visibility_;
  Tensor dout_;
  Tensor q_;
  Tensor k_;
  Tensor v_;
  Tensor out_;
  const float* lse_;
  Tensor dq_;
  Tensor dk_;
  Tensor dv_;
  float* dq_sums_;
  float* deltas_;
};

template <typename Kernel>
absl::StatusOr<std::unique_ptr<PreparedKernel>> Prepare(
    const KernelContext& context) {
  return MakeKernel(Kernel(context));
}

absl::Status SupportsGradient(const Attributes& attributes,
                              absl::Span<const TensorType> operands,
                              absl::Span<const TensorType> results) {
  return Supports(attributes, operands.subspan(1), results);
}

constexpr KernelDef kKernels[] = {
    {.op = "attention", .supports = Supports, .prepare = Prepare<Forward>},
    {.op = "attention_gradient",
     .supports = SupportsGradient,
     .workspace = Backward::Workspace,
     .prepare = Prepare<Backward>},
};

}  // namespace

absl::Span<const KernelDef> AttentionCpuKernels() { return kKernels; }

}  // namespace shardgraph
