// What attention does to one tile of scores between its products, compiled for
// each CPU target.
//
// A tile is kQueryBlock x kKeyBlock at most; row i of any tile starts at
// element i * kKeyBlock. Plain structs only (kernels/cpu/target.h says why).
#ifndef KERNELS_ATTENTION_ATTENTION_TILE_H_
#define KERNELS_ATTENTION_ATTENTION_TILE_H_

#include <cstdint>

namespace shardgraph {

inline constexpr int64_t kQueryBlock = 64;
inline constexpr int64_t kKeyBlock = 64;

struct AttentionTile {
  int64_t rows = 0;     // queries
  int64_t columns = 0;  // keys
  float scale = 1;      // of the scores
  // What dropout multiplies each probability with; null without dropout.
  const float* kept = nullptr;
};

// One step of the online softmax. In: products of q and k in `scores`, with
// -infinity where a key is not visible; of the tiles before, the largest
// scaled score of each row in `max` and the sum of exponentials relative to it
// in `sum`. Out: exponentials relative to the new maximum, after dropout, in
// `scores`; max and sum brought up to date; rows of `out` (width elements each,
// `width` apart) rescaled to the new maximum.
using OnlineSoftmaxFunction = void(const AttentionTile& tile, float* scores,
                                   float* max, float* sum, float* out,
                                   int64_t width);

// In: products of q and k in `scores` (-infinity where not visible), of dout
// and v in `dp`. Out: probabilities after dropout in `scores`, gradients of the
// unscaled scores, times scale, in `dp`.
using ScoreGradientFunction = void(const AttentionTile& tile, const float* lse,
                                   const float* delta, float* scores,
                                   float* dp);

namespace baseline {
OnlineSoftmaxFunction OnlineSoftmax;
ScoreGradientFunction ScoreGradient;
}  // namespace baseline
namespace avx2 {
OnlineSoftmaxFunction OnlineSoftmax;
ScoreGradientFunction ScoreGradient;
}  // namespace avx2
namespace avx512 {
OnlineSoftmaxFunction OnlineSoftmax;
ScoreGradientFunction ScoreGradient;
}  // namespace avx512

}  // namespace shardgraph

#endif  // KERNELS_ATTENTION_ATTENTION_TILE_H_
