#include "kernels/matmul/gemm.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "kernels/check.h"

namespace shardgraph {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t a, int64_t b) { return DivideUp(a, b) * b; }

// Of GemmScratchBytes.
constexpr int64_t kOne = 1;
constexpr int64_t kWidestPanel = 32;
constexpr int64_t kScratchBytes = int64_t{8} << 20;
constexpr int64_t kMaxScratchBytes = int64_t{16} << 20;  // where k is long
constexpr int64_t kWantedPanels = 8;  // with fewer, packing a would show
constexpr int64_t kMinSharedRows = 192;
constexpr int64_t kMinSharedColumns = 128;
constexpr int64_t kMinSharedElements = 1 << 15;

// Of columns whose panels are shared at a time.
constexpr int64_t kMinChunk = 128;

// Elements of tiles that are not stored to c.
constexpr int64_t kMaxDiscarded = 384 * 128;

const GemmKernels* override_kernels = nullptr;

const GemmKernels& KernelsFor(const GemmProblem& problem, CpuTarget target) {
  const bool bf16 = problem.a.bf16 && problem.b.bf16;
  if (override_kernels != nullptr &&
      (bf16 || override_kernels->element_bytes == sizeof(float)))
    return *override_kernels;
  if (bf16 && target == CpuTarget::kAmx) return amx::kGemmKernels;
  if (bf16 && target == CpuTarget::kAvx512Bf16)
    return avx512_bf16::kGemmKernels;
  return *ForTarget(target, &baseline::kGemmKernels, &avx2::kGemmKernels,
                    &avx512::kGemmKernels);
}

int64_t CacheBytes() {
  static const int64_t bytes =
      std::max<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), 256 << 10);
  return bytes;
}

// Packed rows of a tile take a third of the second-level cache, its sums half.
int64_t TileRows(const GemmKernels& kernels) {
  return std::min<int64_t>(CacheBytes() / 3 / (kGemmDepth * 4),
                           kernels.max_rows);
}
int64_t TileElements(const GemmKernels& kernels, int64_t k) {
  if (k <= kernels.block_depth) return std::numeric_limits<int64_t>::max();
  return std::min<int64_t>(CacheBytes() / 2 / 4, kGemmMaxElements);
}

// `size` in equal parts of whole panels, none longer than `longest` (a multiple
// of `panel`), at least `parts` of them where there are as many panels.
int64_t PartSize(int64_t size, int64_t longest, int64_t parts, int64_t panel) {
  const int64_t count = std::max(DivideUp(size, longest), parts);
  return RoundUp(DivideUp(size, count), panel);
}

// How a range of columns is divided into tiles.
struct Division {
  int64_t rows = 0;
  int64_t columns = 0;
};

Division Divide(const GemmKernels& kernels, int64_t m, int64_t n,
                int64_t threads, int64_t max_elements) {
  Division division;
  const int64_t longest_rows =
      std::max(TileRows(kernels) / kernels.panel_rows, int64_t{1}) *
      kernels.panel_rows;
  division.rows = PartSize(m, longest_rows, 1, kernels.panel_rows);
  const int64_t longest =
      std::max(max_elements / division.rows / kernels.panel_columns,
               int64_t{1}) *
      kernels.panel_columns;
  division.columns = PartSize(n, longest, 1, kernels.panel_columns);
  if (threads == 1) return division;
  // Tiles enough that threads end at about the same time, but not so small that
  // packing shows.
  const auto tiles = [&] {
    return DivideUp(m, division.rows) * DivideUp(n, division.columns);
  };
  for (int64_t parts = 2; tiles() < 4 * threads && parts <= 64; ++parts) {
    const bool split_columns = division.columns > 2 * division.rows;
    if (split_columns) {
      division.columns = PartSize(n, longest, DivideUp(n, division.columns) + 1,
                                  kernels.panel_columns);
    } else if (division.rows > 48) {
      division.rows = PartSize(m, longest_rows, DivideUp(m, division.rows) + 1,
                               kernels.panel_rows);
    } else {
      break;
    }
  }
  return division;
}

// Columns [0, n) of a product, or two ranges of n columns each: pairs.
void Run(const GemmProblem& problem, ThreadPool* pool,
         const GemmOptions& options, const GemmEpilogue* epilogue) {
  if (problem.m == 0 || problem.n == 0) return;
  const GemmKernels& kernels = KernelsFor(problem, options.target);
  const bool discard = epilogue != nullptr && epilogue->discard_c;
  const int ranges = epilogue != nullptr && epilogue->pairs ? 2 : 1;
  const int64_t n = problem.n / ranges;
  const int64_t to_right = n;
  const int64_t panel_bytes = RoundUp(problem.k, kernels.panel_depth) *
                              kernels.panel_columns * kernels.element_bytes;
  const int64_t panels =
      panel_bytes == 0 ? 0 : options.scratch_bytes / panel_bytes / ranges;
  // Rows of a are packed again for each chunk: few panels would not pay.
  const bool shared = options.scratch != nullptr && panels > 0 &&
                      panels * kernels.panel_columns >= std::min(n, kMinChunk);
  const int64_t chunk =
      shared ? std::min(n, panels * kernels.panel_columns) : n;
  const int64_t c_bytes = problem.c_bf16 ? 2 : 4;
  for (int64_t first = 0; first < n; first += chunk) {
    const int64_t width = std::min(chunk, n - first);
    const int64_t chunk_panels = DivideUp(width, kernels.panel_columns);
    char* const packed = static_cast<char*>(options.scratch);
    const auto packed_at = [&](int range, int64_t column) -> char* {
      if (!shared) return nullptr;
      return packed +
             (range * chunk_panels + (column - first) / kernels.panel_columns) *
                 panel_bytes;
    };
    if (shared) {
      pool->ParallelFor(
          ranges * chunk_panels, 4, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const int64_t column =
                  first + i % chunk_panels * kernels.panel_columns;
              const int range = i / chunk_panels;
              kernels.pack(
                  problem, range * to_right + column,
                  std::min(kernels.panel_columns, first + width - column),
                  packed_at(range, column));
            }
          });
    }
    const Division division = Divide(
        kernels, problem.m, width, pool->num_threads(),
        discard ? kMaxDiscarded / ranges : TileElements(kernels, problem.k));
    const int64_t row_tiles = DivideUp(problem.m, division.rows);
    const int64_t column_tiles = DivideUp(width, division.columns);
    const auto body = [&](int64_t i, float* discarded) {
      GemmTile tiles[2];
      for (int r = 0; r < ranges; ++r) {
        GemmTile& tile = tiles[r];
        tile.m = i % row_tiles * division.rows;
        tile.rows = std::min(division.rows, problem.m - tile.m);
        const int64_t column = first + i / row_tiles * division.columns;
        tile.n = column + r * to_right;
        tile.columns = std::min(division.columns, first + width - column);
        if (discard) {
          tile.c = discarded + r * (kMaxDiscarded / 2);
          tile.c_row_stride = tile.columns;
        } else {
          tile.c = static_cast<char*>(problem.c) +
                   (tile.m * problem.c_row_stride + tile.n) * c_bytes;
          tile.c_row_stride = problem.c_row_stride;
        }
        kernels.run(problem, tile, packed_at(r, column));
      }
      if (epilogue != nullptr) epilogue->apply(tiles[0], tiles[1]);
    };
    pool->ParallelFor(row_tiles * column_tiles, 1,
                      [&](int64_t begin, int64_t end) {
                        if (discard) {
                          alignas(64) float discarded[kMaxDiscarded];
                          for (int64_t i = begin; i < end; ++i)
                            body(i, discarded);
                        } else {
                          for (int64_t i = begin; i < end; ++i)
                            body(i, nullptr);
                        }
                      });
  }
}

}  // namespace

bool GemmTakes(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

GemmMatrix AsGemmMatrix(const Tensor& tensor) {
  SG_CHECK(tensor.type.rank() == 2 && GemmTakes(tensor.type.dtype))
      << tensor.type.ToString();
  GemmMatrix matrix;
  matrix.data = tensor.data;
  matrix.bf16 = tensor.type.dtype == DType::kBF16;
  matrix.row_stride = tensor.type.strides[0];
  return matrix;
}

GemmMatrix Transposed(const GemmMatrix& matrix) {
  GemmMatrix transposed = matrix;
  std::swap(transposed.row_stride, transposed.column_stride);
  return transposed;
}

void SetGemmResult(const Tensor& tensor, GemmProblem* problem) {
  SG_CHECK(tensor.type.rank() == 2 && GemmTakes(tensor.type.dtype))
      << tensor.type.ToString();
  problem->c = tensor.data;
  problem->c_bf16 = tensor.type.dtype == DType::kBF16;
  problem->c_row_stride = tensor.type.strides[0];
}

int64_t GemmScratchBytes(int64_t m, int64_t n, int64_t k) {
  // Every kernel's panels fit: at most kWidestPanel columns of FP32.
  const int64_t panel = RoundUp(k, kWidestPanel) * kWidestPanel * 4;
  const auto panels_of = [&](int64_t bytes) {
    return bytes / std::max(panel, kOne);
  };
  const int64_t panels =
      std::min(DivideUp(n, kWidestPanel),
               std::max(panels_of(kScratchBytes),
                        std::min(kWantedPanels, panels_of(kMaxScratchBytes))));
  // Packing pays off when a panel is used often, and panels side by side when
  // rows of a are packed for many of them.
  if (m <= kMinSharedRows || n * k < kMinSharedElements ||
      panels * kWidestPanel < std::min(n, kMinSharedColumns))
    return 0;
  return panels * panel;
}

void RunGemm(const GemmProblem& problem, ThreadPool* pool,
             const GemmOptions& options) {
  Run(problem, pool, options, nullptr);
}

void RunGemm(const GemmProblem& problem, ThreadPool* pool,
             const GemmOptions& options, const GemmEpilogue& epilogue) {
  Run(problem, pool, options, &epilogue);
}

void RunGemmHere(const GemmProblem& problem, CpuTarget target) {
  class Here final : public ThreadPool {
   public:
    int num_threads() const override { return 1; }
    void ParallelFor(int64_t n, int64_t,
                     absl::FunctionRef<void(int64_t, int64_t)> body) override {
      body(0, n);
    }
  } here;
  GemmOptions options;
  options.target = target;
  RunGemm(problem, &here, options);
}

GemmKernelsOverride::GemmKernelsOverride(const GemmKernels& kernels) {
  SG_CHECK(override_kernels == nullptr);
  override_kernels = &kernels;
}

GemmKernelsOverride::~GemmKernelsOverride() { override_kernels = nullptr; }

}  // namespace shardgraph
