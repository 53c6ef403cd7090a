#include "graph/placement.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace shardgraph {
namespace {

// Tests of one item against another that all attempts together may make.
constexpr int64_t kMaxTests = 300'000'000;
constexpr int kMaxAttempts = 300;
// Attempts in a row that may fail to improve.
constexpr int kMaxFailures = 24;

enum class Fit { kLowest, kTightest };

class Placer {
 public:
  explicit Placer(const std::vector<PlacementItem>& items) : items_(items) {
    for (const PlacementItem& item : items) {
      Span span{std::numeric_limits<int32_t>::max(), 0};
      for (const Use& use : item.uses) {
        span.begin = std::min(span.begin, use.begin);
        span.release = std::max(span.release, use.release);
      }
      spans_.push_back(span);
    }
  }

  // One attempt: each item goes, in this order, where it fits among those
  // placed before.
  PlacementResult Attempt(const std::vector<int32_t>& order, Fit fit) {
    PlacementResult result;
    result.offsets.assign(items_.size(), 0);
    placed_.clear();
    for (int32_t id : order) {
      const int64_t offset = Find(id, fit);
      result.offsets[id] = offset;
      result.bytes = std::max(result.bytes, offset + items_[id].bytes);
      const Placed placed{spans_[id], offset, offset + items_[id].bytes, id};
      placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), placed,
                                      [](const Placed& a, const Placed& b) {
                                        return a.offset < b.offset;
                                      }),
                     placed);
    }
    return result;
  }

  int64_t tests() const { return tests_; }

 private:
  struct Span {
    int32_t begin;
    int32_t release;
  };
  struct Placed {
    Span span;
    int64_t offset;
    int64_t end;
    int32_t id;
  };

  bool Conflict(int32_t a, int32_t b) const {
    for (const Use& x : items_[a].uses) {
      for (const Use& y : items_[b].uses) {
        if (x.phase == y.phase && !Precedes(x, y) && !Precedes(y, x))
          return true;
      }
    }
    return false;
  }

  int64_t Find(int32_t id, Fit fit) {
    const Span span = spans_[id];
    const int64_t bytes = items_[id].bytes;
    const int64_t alignment = items_[id].alignment;
    int64_t cursor = 0;  // aligned; all conflicting items so far end before it
    int64_t best = -1;
    int64_t best_gap = std::numeric_limits<int64_t>::max();
    tests_ += static_cast<int64_t>(placed_.size());
    for (const Placed& other : placed_) {
      if (other.span.release < span.begin || span.release < other.span.begin ||
          other.end <= cursor || !Conflict(id, other.id)) {
        continue;
      }
      const int64_t gap = other.offset - cursor;
      if (gap >= bytes && gap < best_gap) {
        if (fit == Fit::kLowest) return cursor;
        best = cursor;
        best_gap = gap;
      }
      cursor =
          std::max(cursor, (other.end + alignment - 1) / alignment * alignment);
    }
    return best >= 0 ? best : cursor;
  }

  const std::vector<PlacementItem>& items_;
  std::vector<Span> spans_;
  std::vector<Placed> placed_;  // by offset
  int64_t tests_ = 0;
};

// Item ids by falling key; ties by falling second key, then by id.
template <typename F>
std::vector<int32_t> OrderBy(size_t size, F key) {
  std::vector<std::pair<std::pair<double, double>, int32_t>> keyed;
  for (size_t i = 0; i < size; ++i) {
    const auto [first, second] = key(i);
    keyed.push_back({{-first, -second}, static_cast<int32_t>(i)});
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<int32_t> order;
  for (const auto& entry : keyed) order.push_back(entry.second);
  return order;
}

}  // namespace

PlacementResult Place(const std::vector<PlacementItem>& items,
                      int64_t good_enough) {
  const auto length = [&](size_t i) {
    double length = 0;
    for (const Use& use : items[i].uses)
      length = std::max(length, 1.0 + use.end - use.begin);
    return length;
  };
  const auto bytes = [&](size_t i) {
    return static_cast<double>(items[i].bytes);
  };
  using Key = std::pair<double, double>;
  const size_t size = items.size();
  const std::vector<std::vector<int32_t>> orders = {
      OrderBy(size, [&](size_t i) { return Key(length(i), bytes(i)); }),
      OrderBy(size, [&](size_t i) { return Key(bytes(i), length(i)); }),
      OrderBy(size,
              [&](size_t i) { return Key(length(i) * bytes(i), bytes(i)); }),
      OrderBy(size,
              [&](size_t i) { return Key(-items[i].uses[0].begin, bytes(i)); }),
  };

  Placer placer(items);
  PlacementResult best;
  best.bytes = std::numeric_limits<int64_t>::max();
  // Results of the first attempts, best first: where to go on from.
  std::vector<std::pair<PlacementResult, const std::vector<int32_t>*>> starts;
  for (const std::vector<int32_t>& order : orders) {
    PlacementResult best_of_order;
    best_of_order.bytes = std::numeric_limits<int64_t>::max();
    for (const Fit fit : {Fit::kLowest, Fit::kTightest}) {
      PlacementResult result = placer.Attempt(order, fit);
      if (result.bytes <= good_enough) return result;
      if (result.bytes < best_of_order.bytes) best_of_order = std::move(result);
      if (placer.tests() > kMaxTests) break;
    }
    if (best_of_order.bytes < best.bytes) best = best_of_order;
    starts.push_back({std::move(best_of_order), &order});
    if (placer.tests() > kMaxTests) break;
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](const auto& a, const auto& b) {
                     return a.first.bytes < b.first.bytes;
                   });

  int attempts = 0;
  for (const auto& [start, start_order] : starts) {
    std::vector<int32_t> order = *start_order;
    PlacementResult current = start;
    int64_t best_here = start.bytes;
    int failures = 0;
    while (failures < kMaxFailures && attempts < kMaxAttempts &&
           placer.tests() < kMaxTests) {
      // Those that end above what the best so far needs, or at the top, go
      // first.
      const int64_t limit =
          std::max(good_enough, std::min(current.bytes, best_here) - 1);
      std::stable_partition(order.begin(), order.end(), [&](int32_t id) {
        return current.offsets[id] + items[id].bytes > limit;
      });
      current = placer.Attempt(
          order, attempts % 2 == 0 ? Fit::kLowest : Fit::kTightest);
      ++attempts;
      ++failures;
      if (current.bytes < best_here) {
        best_here = current.bytes;
        failures = 0;
      }
      if (current.bytes < best.bytes) best = current;
      if (best.bytes <= good_enough) return best;
    }
  }
  if (items.empty()) best.bytes = 0;
  return best;
}

}  // namespace shardgraph
