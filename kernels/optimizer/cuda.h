// Launching of optimizer kernels on a GPU. Plain structs, for .cu files.
// kernels/optimizer/optimizer.h has the formulas.
#ifndef KERNELS_OPTIMIZER_CUDA_H_
#define KERNELS_OPTIMIZER_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph::cuda {

inline constexpr int kOptimizerGroups = 8;

// Elements [begin, end) of a shard, of one optimizer group; the first tile of
// kUpdateTile elements that is theirs (tiles begin at multiples of four).
struct UpdateRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first_tile = 0;
  int group = 0;
};
inline constexpr int64_t kUpdateTile = 4096;

// What ranges there are, in device memory, sorted; `tiles` of them together.
struct UpdateRanges {
  const UpdateRange* ranges = nullptr;
  int64_t count = 0;
  int64_t tiles = 0;
};

// What all optimizers take. All but `ranges` is read at launch.
struct UpdateLaunch {
  UpdateRanges ranges;
  float* master = nullptr;
  const float* gradient = nullptr;
  void* moments[2] = {};  // null: not there
  bool rounds = false;    // moments are BF16
  uint64_t seed = 0;      // of their rounding
  uint64_t key = 0;
  const int64_t* run_step = nullptr;
  int64_t offset = 0;       // the shard's first element in the flat parameter
  void* compute = nullptr;  // null: none
  ElementType compute_type = ElementType::kBF16;
  const float* learning_rate = nullptr;
  const double* gradient_scale = nullptr;
  const int32_t* found_inf = nullptr;
  double weight_decay[kOptimizerGroups] = {};
  bool vector = false;  // all data allow 16-byte accesses
};

struct AdamWLaunch {
  UpdateLaunch update;
  const double* beta1_power = nullptr;
  const double* beta2_power = nullptr;
  double beta1[kOptimizerGroups] = {};
  double beta2[kOptimizerGroups] = {};
  double epsilon[kOptimizerGroups] = {};
  bool l2 = false;
};
cudaError_t LaunchAdamW(const AdamWLaunch& launch, cudaStream_t stream);

struct SgdLaunch {
  UpdateLaunch update;
  double momentum[kOptimizerGroups] = {};
};
cudaError_t LaunchSgd(const SgdLaunch& launch, cudaStream_t stream);

struct LionLaunch {
  UpdateLaunch update;
  double beta1[kOptimizerGroups] = {};
  double beta2[kOptimizerGroups] = {};
};
cudaError_t LaunchLion(const LionLaunch& launch, cudaStream_t stream);

// Blocks of kSquaresBlock elements of the flat parameter, whose element
// `offset` is the shard's first.
inline constexpr int64_t kSquaresBlock = 4096;
struct SumOfSquaresLaunch {
  UpdateRanges ranges;
  const float* gradient = nullptr;
  int64_t n = 0;
  int64_t offset = 0;
  float* partial = nullptr;  // for each block that the shard touches
  double* sum = nullptr;
};
cudaError_t LaunchSumOfSquares(const SumOfSquaresLaunch& launch,
                               cudaStream_t stream);

struct AccumulateLaunch {
  bool f64 = false;
  void* destination = nullptr;
  const void* contribution = nullptr;
  int64_t n = 0;
  const int64_t* micro = nullptr;
};
cudaError_t LaunchAccumulate(const AccumulateLaunch& launch,
                             cudaStream_t stream);

struct SumPiecesLaunch {
  ElementType type = ElementType::kF32;
  const void* pieces = nullptr;
  float* sum = nullptr;
  int64_t n = 0;  // of the sum
  int64_t size = 1;
};
cudaError_t LaunchSumPieces(const SumPiecesLaunch& launch, cudaStream_t stream);

struct FinishGradientsLaunch {
  const double* sums = nullptr;
  int64_t count = 0;
  const double* token_count = nullptr;
  const double* nominal_tokens = nullptr;
  const float* loss_scale = nullptr;
  double* gradient_norm = nullptr;
  double* gradient_scale = nullptr;
  int32_t* found_inf = nullptr;
  int32_t* stop = nullptr;
  bool stops = false;  // NonFinite::kStop
  bool ignores = false;
  double max_norm = 0;
};
cudaError_t LaunchFinishGradients(const FinishGradientsLaunch& launch,
                                  cudaStream_t stream);

struct UpdateLossScaleLaunch {
  float* loss_scale = nullptr;
  int32_t* growth_counter = nullptr;
  const int32_t* found_inf = nullptr;
  double growth = 1;
  double backoff = 1;
  int64_t interval = 1;
};
cudaError_t LaunchUpdateLossScale(const UpdateLossScaleLaunch& launch,
                                  cudaStream_t stream);

struct AdvanceStateLaunch {
  int64_t* optimizer_step = nullptr;
  double* beta1_power = nullptr;
  double* beta2_power = nullptr;
  const int32_t* found_inf = nullptr;
  double beta1[kOptimizerGroups] = {};
  double beta2[kOptimizerGroups] = {};
};
cudaError_t LaunchAdvanceState(const AdvanceStateLaunch& launch,
                               cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_OPTIMIZER_CUDA_H_
