#include "kernels/attention/attention_tile.h"

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector_math.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

const float kMinusInfinity = -__builtin_inff();

bool HasNan(const float* x, int64_t n) {
  bool found = false;
  for (int64_t j = 0; j < n; ++j) found |= x[j] != x[j];
  return found;
}

// x = e^(scale * x - shift); the sum of the results.
float ExpRow(float scale, float shift, int64_t n, float* x) {
  for (int64_t j = 0; j < n; ++j) x[j] = VectorExp(scale * x[j] - shift);
  float lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += x[j + l];
  }
  for (; j < n; ++j) lanes[0] += x[j];
  return SumOfLanes(lanes);
}

}  // namespace

void OnlineSoftmax(const AttentionTile& tile, float* scores, float* max,
                   float* sum, float* out, int64_t width) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    float* row = scores + i * kKeyBlock;
    if (tile.scale <= 0) {  // the largest product is not the largest score
      for (int64_t j = 0; j < tile.columns; ++j)
        row[j] = row[j] == kMinusInfinity ? row[j] : tile.scale * row[j];
    }
    const float scale = tile.scale <= 0 ? 1.0f : tile.scale;
    const float largest = scale * VectorMax(row, tile.columns);
    float new_max = largest > max[i] ? largest : max[i];
    if (new_max == kMinusInfinity) {
      if (!HasNan(row, tile.columns)) {  // no key is visible yet
        std::memset(row, 0, tile.columns * sizeof(float));
        continue;
      }
      new_max = 0;  // any number: the sum becomes NaN
    }
    const float rescale = VectorExp(max[i] - new_max);
    max[i] = new_max;
    sum[i] = sum[i] * rescale + ExpRow(scale, new_max, tile.columns, row);
    if (tile.kept != nullptr) {
      const float* kept = tile.kept + i * kKeyBlock;
      for (int64_t j = 0; j < tile.columns; ++j) row[j] *= kept[j];
    }
    if (rescale != 1.0f) {
      for (int64_t d = 0; d < width; ++d) out[i * width + d] *= rescale;
    }
  }
}

void ScoreGradient(const AttentionTile& tile, const float* lse,
                   const float* delta, float* scores, float* dp) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    float* p = scores + i * kKeyBlock;
    float* ds = dp + i * kKeyBlock;
    if (lse[i] == kMinusInfinity) {  // this query sees no key
      std::memset(p, 0, tile.columns * sizeof(float));
      std::memset(ds, 0, tile.columns * sizeof(float));
      continue;
    }
    // Copies, so that stores to p cannot change them.
    const float scale = tile.scale;
    const float row_lse = lse[i];
    const float row_delta = delta[i];
    for (int64_t j = 0; j < tile.columns; ++j) {
      // Also where scale is not positive, -infinity stands for a masked key.
      const float score = scale * p[j];
      p[j] = VectorExp((p[j] == kMinusInfinity ? kMinusInfinity : score) -
                       row_lse);
    }
    if (tile.kept == nullptr) {
      for (int64_t j = 0; j < tile.columns; ++j)
        ds[j] = p[j] * (ds[j] - row_delta) * scale;
      continue;
    }
    const float* kept = tile.kept + i * kKeyBlock;
    for (int64_t j = 0; j < tile.columns; ++j) {
      ds[j] = p[j] * (kept[j] * ds[j] - row_delta) * scale;
      p[j] *= kept[j];
    }
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
