// Bpe: byte pair encoding of one word: pairs of neighbouring symbols are
// merged, always the pair that was learned first, the leftmost of equals.
#ifndef TOOLS_TEXT_BPE_H_
#define TOOLS_TEXT_BPE_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace shardgraph {

class Bpe {
 public:
  // `left` and `right` become `merged`; earlier calls have precedence. The last
  // call for a pair counts.
  void AddMerge(int32_t left, int32_t right, int32_t merged);

  // Replaces the symbols of a word by what they merge to. O(n log n).
  void Merge(std::vector<int32_t>* symbols) const;

 private:
  struct Rule {
    int32_t rank = 0;
    int32_t merged = 0;
  };

  // Null: no rule.
  const Rule* Find(int32_t left, int32_t right) const;

  absl::flat_hash_map<uint64_t, Rule> rules_;
  int32_t next_rank_ = 0;
};

}  // namespace shardgraph

#endif  // TOOLS_TEXT_BPE_H_
