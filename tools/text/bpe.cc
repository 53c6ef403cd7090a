#include "tools/text/bpe.h"

#include <cstddef>
#include <queue>

namespace shardgraph {
namespace {

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
         static_cast<uint32_t>(right);
}

struct Symbol {
  int32_t id;              // -1: merged into the one before
  int32_t previous, next;  // positions; -1: none
};

struct Candidate {
  int32_t rank, position, merged;

  // Of a queue whose top is the smallest.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
};

}  // namespace

void Bpe::AddMerge(int32_t left, int32_t right, int32_t merged) {
  rules_[PairOf(left, right)] = {next_rank_++, merged};
}

const Bpe::Rule* Bpe::Find(int32_t left, int32_t right) const {
  const auto it = rules_.find(PairOf(left, right));
  return it == rules_.end() ? nullptr : &it->second;
}

void Bpe::Merge(std::vector<int32_t>* symbols) const {
  const int32_t n = static_cast<int32_t>(symbols->size());
  if (n < 2) return;
  std::vector<Symbol> list(n);
  std::vector<Candidate> candidates;
  for (int32_t i = 0; i < n; ++i) {
    list[i] = {(*symbols)[i], i - 1, i + 1 < n ? i + 1 : -1};
    if (i + 1 == n) continue;
    if (const Rule* rule = Find((*symbols)[i], (*symbols)[i + 1]))
      candidates.push_back({rule->rank, i, rule->merged});
  }
  if (candidates.empty()) return;
  std::priority_queue<Candidate> queue(std::less<Candidate>(),
                                       std::move(candidates));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& symbol = list[top.position];
    if (symbol.id < 0 || symbol.next < 0) continue;
    Symbol& right = list[symbol.next];
    // What has merged since may have another rule here, or none.
    const Rule* rule = Find(symbol.id, right.id);
    if (rule == nullptr || rule->merged != top.merged) continue;
    symbol.id = rule->merged;
    symbol.next = right.next;
    right.id = -1;
    if (symbol.next >= 0) list[symbol.next].previous = top.position;
    const auto consider = [&](int32_t position) {
      const Symbol& left = list[position];
      if (left.next < 0) return;
      if (const Rule* next = Find(left.id, list[left.next].id))
        queue.push({next->rank, position, next->merged});
    };
    if (symbol.previous >= 0) consider(symbol.previous);
    consider(top.position);
  }
  symbols->clear();
  for (int32_t i = 0; i >= 0; i = list[i].next) symbols->push_back(list[i].id);
}

}  // namespace shardgraph
