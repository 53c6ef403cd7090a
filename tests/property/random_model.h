// Model specs drawn at random.
#ifndef TESTS_PROPERTY_RANDOM_MODEL_H_
#define TESTS_PROPERTY_RANDOM_MODEL_H_

#include <cstdint>
#include <initializer_list>
#include <random>

#include "proto/model.pb.h"

namespace shardgraph {

// Draws that are the same with every standard library.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  // Uniform in [first, last].
  int64_t Int(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(
                       random_() % static_cast<uint64_t>(last - first + 1));
  }
  bool Chance(int percent) { return Int(1, 100) <= percent; }
  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return choices.begin()[Int(0, static_cast<int64_t>(choices.size()) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

// A valid spec: depth 1 to 8, width 8 to 100, at most `max_positions`
// positions.
ModelSpec DrawModel(Draw& draw, int64_t max_positions);

}  // namespace shardgraph

#endif  // TESTS_PROPERTY_RANDOM_MODEL_H_
