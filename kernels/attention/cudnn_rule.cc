#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/attention/cudnn.h"

namespace shardgraph {
namespace {

// A deterministic gradient may hold scores of so many bytes in one call...
constexpr int64_t kScoreBytes = int64_t{1} << 30;
// ... or, where one group of heads of one sequence has more, of so many; above
// that the own kernels need less time than the memory is worth.
constexpr int64_t kMostScoreBytes = int64_t{4} << 30;

int64_t RoundUp(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// The config of an instance of either op.
AttentionConfig ConfigOf(const Attributes& attributes,
                         absl::Span<const TensorType> operands, bool gradient) {
  const int first = gradient ? 1 : 0;
  return AttentionConfig(attributes, operands[first], operands[first + 1]);
}

// The library works on whole tiles of at most so many positions.
constexpr int64_t kTile = 128;
int64_t Padded(int64_t length) { return (length + kTile - 1) / kTile * kTile; }

int64_t ScoreBytes(const AttentionConfig& config, int64_t sequences,
                   int64_t kv_heads) {
  return sequences * kv_heads * config.heads_per_group() *
         Padded(config.queries) * Padded(config.queries) * 2;
}

// The largest divisor of n for which `fits` holds; 1 if none does.
template <typename F>
int64_t LargestDivisor(int64_t n, F fits) {
  for (int64_t d = n; d > 1; --d) {
    if (n % d == 0 && fits(d)) return d;
  }
  return 1;
}

}  // namespace

absl::Status CudnnSupports(const Attributes& attributes,
                           absl::Span<const TensorType> operands,
                           absl::Span<const TensorType> results) {
  const bool gradient = results.size() == 3;
  const AttentionConfig config = ConfigOf(attributes, operands, gradient);
  const auto refused = [](const auto&... words) {
    return absl::UnimplementedError(absl::StrCat("cuDNN: ", words...));
  };
  if (operands[0].dtype != DType::kBF16)
    return refused(DTypeName(operands[0].dtype), "; it takes BF16");
  if (config.dropout > 0) return refused("dropout is keyed otherwise");
  if (config.has_documents) return refused("documents");
  if (config.has_offset) return refused("a query offset");
  if (config.batch == 0 || config.heads == 0 || config.queries == 0)
    return refused("no elements");
  if (config.queries != config.keys)
    return refused(config.queries, " queries over ", config.keys, " keys");
  if (config.width % 8 != 0 || config.width > 128 || config.width == 0)
    return refused("heads of width ", config.width,
                   "; a multiple of 8 up to 128");
  for (const auto& types : {operands, results}) {
    for (const TensorType& type : types) {
      if (type.rank() != 4) continue;
      for (int d = 0; d < 3; ++d) {
        if (type.strides[d] % 8 != 0)
          return refused(type.ToString(), ": strides are multiples of 8");
      }
    }
  }
  if (gradient && !config.fast && ScoreBytes(config, 1, 1) > kMostScoreBytes)
    return refused("a deterministic gradient of ", config.queries,
                   " positions holds ", ScoreBytes(config, 1, 1),
                   " bytes of scores");
  return absl::OkStatus();
}

CudnnCalls CudnnCallsOf(const AttentionConfig& config, bool gradient) {
  CudnnCalls calls = {.sequences = config.batch, .kv_heads = config.kv_heads};
  if (!gradient) {
    calls.library_bytes = calls.bytes = 1024;
    return calls;
  }
  if (!config.fast) {
    calls.sequences = LargestDivisor(config.batch, [&](int64_t sequences) {
      return ScoreBytes(config, sequences, config.kv_heads) <= kScoreBytes;
    });
    if (calls.sequences == 1) {
      calls.kv_heads = LargestDivisor(config.kv_heads, [&](int64_t kv_heads) {
        return ScoreBytes(config, 1, kv_heads) <= kScoreBytes;
      });
    }
  }
  const int64_t heads = calls.kv_heads * config.heads_per_group();
  const int64_t rows = calls.sequences * heads * config.queries;
  const int64_t elements = rows * config.width;
  calls.dq_sums = RoundUp(rows * 4);
  calls.library = calls.dq_sums + (config.fast ? RoundUp(elements * 4) : 0);
  // Gradients of keys and values by query head; then either scores or, on
  // sm_80, sums of dq again.
  calls.library_bytes =
      1024 + (config.heads_per_group() > 1 ? elements * 4 : 0) +
      (config.fast ? elements / config.queries * Padded(config.queries) * 4
                   : ScoreBytes(config, calls.sequences, calls.kv_heads));
  calls.bytes = calls.library + RoundUp(calls.library_bytes);
  return calls;
}

int64_t AttentionCudaWorkspace(const Attributes& attributes,
                               absl::Span<const TensorType> operands,
                               absl::Span<const TensorType> results) {
  if (!CudnnSupports(attributes, operands, results).ok()) return 0;
  return CudnnCallsOf(ConfigOf(attributes, operands, false), false).bytes;
}

int64_t AttentionGradientCudaWorkspace(const Attributes& attributes,
                                       absl::Span<const TensorType> operands,
                                       absl::Span<const TensorType> results) {
  // The own kernels: sums over d of dout * out [B, H, T].
  const int64_t own = 4 * operands[5].num_elements();
  if (!CudnnSupports(attributes, operands, results).ok()) return own;
  const AttentionConfig config = ConfigOf(attributes, operands, true);
  return std::max(own, CudnnCallsOf(config, true).bytes);
}

}  // namespace shardgraph
