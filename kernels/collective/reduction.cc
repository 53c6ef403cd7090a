#include "kernels/collective/reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/check.h"

namespace shardgraph {
namespace {

// Bytes of partial results: small enough to stay in L1 beside the sources.
constexpr int64_t kBlockBytes = 8192;
// Bytes below which a second thread costs more than it brings.
constexpr int64_t kGrainBytes = 128 * 1024;

void ParallelFor(Lane& lane, int64_t n, int64_t grain,
                 absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (n <= 0) return;
  if (lane.pool == nullptr || lane.pool->num_threads() == 1 || n <= grain) {
    body(0, n);
  } else {
    lane.pool->ParallelFor(n, grain, body);
  }
}

template <typename T, ReduceOp kOp>
T Combine(T a, T b) {
  if constexpr (kOp == ReduceOp::kMax) {
    return (a != a || a >= b) ? a : b;
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

// out may be a or b.
template <typename T, ReduceOp kOp>
void CombineBlock(const T* a, const T* b, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Combine<T, kOp>(a[i], b[i]);
}

template <typename T, ReduceOp kOp>
void ReduceRange(absl::Span<const void* const> sources,
                 absl::Span<void* const> destinations, int64_t begin,
                 int64_t end) {
  constexpr int64_t kBlock = kBlockBytes / sizeof(T);
  const auto source = [&](size_t s) {
    return static_cast<const T*>(sources[s]);
  };
  const auto destination = [&](size_t d) {
    return static_cast<T*>(destinations[d]);
  };
  if (sources.size() == 2 && destinations.size() == 1) {
    CombineBlock<T, kOp>(source(0) + begin, source(1) + begin, end - begin,
                         destination(0) + begin);
    return;
  }
  alignas(64) T sum[kBlock];
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t n = std::min(kBlock, end - start);
    const T* partial = source(0) + start;
    for (size_t s = 1; s < sources.size(); ++s) {
      CombineBlock<T, kOp>(partial, source(s) + start, n, sum);
      partial = sum;
    }
    for (size_t d = 0; d < destinations.size(); ++d) {
      if (destination(d) + start != partial)
        std::memcpy(destination(d) + start, partial, n * sizeof(T));
    }
  }
}

template <typename T>
void Reduce(absl::Span<const void* const> sources,
            absl::Span<void* const> destinations, int64_t count, ReduceOp op,
            Lane& lane) {
  ParallelFor(
      lane, count, kGrainBytes / sizeof(T), [&](int64_t begin, int64_t end) {
        if (op == ReduceOp::kSum) {
          ReduceRange<T, ReduceOp::kSum>(sources, destinations, begin, end);
        } else {
          ReduceRange<T, ReduceOp::kMax>(sources, destinations, begin, end);
        }
      });
}

}  // namespace

bool IsReducible(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI32 ||
         dtype == DType::kI64;
}

void ReduceInRankOrder(absl::Span<const void* const> sources,
                       absl::Span<void* const> destinations, int64_t count,
                       DType dtype, ReduceOp op, Lane& lane) {
  SG_CHECK(!sources.empty() && IsReducible(dtype)) << DTypeName(dtype);
  switch (dtype) {
    case DType::kF32:
      return Reduce<float>(sources, destinations, count, op, lane);
    case DType::kF64:
      return Reduce<double>(sources, destinations, count, op, lane);
    case DType::kI32:
      return Reduce<int32_t>(sources, destinations, count, op, lane);
    default:
      return Reduce<int64_t>(sources, destinations, count, op, lane);
  }
}

void CopyBytes(const void* source, void* destination, int64_t bytes,
               Lane& lane) {
  if (source == destination) return;
  ParallelFor(lane, bytes, kGrainBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(destination) + begin,
                static_cast<const char*>(source) + begin, end - begin);
  });
}

}  // namespace shardgraph
