#include "graph/placement.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace shardgraph {
namespace {

// Tests of one item against another that all attempts together may make: some
// tenths of a second. Attempts at most, and how many in a row may fail to
// improve.
constexpr int64_t kMaxTests = 100'000'000;
constexpr int kMaxAttempts = 300;
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
      first_uses_.push_back(item.uses[0]);
      has_more_uses_.push_back(item.uses.size() > 1);
    }
  }

  // One attempt: each item goes, in this order, where it fits among those
  // placed before.
  PlacementResult Attempt(const std::vector<int32_t>& order, Fit fit) {
    PlacementResult result;
    result.offsets.assign(items_.size(), 0);
    placed_spans_.clear();
    placed_.clear();
    for (int32_t id : order) {
      const int64_t offset = Find(id, fit);
      result.offsets[id] = offset;
      result.bytes = std::max(result.bytes, offset + items_[id].bytes);
      const auto at = std::partition_point(
          placed_.begin(), placed_.end(),
          [offset](const Placed& other) { return other.offset <= offset; });
      placed_spans_.insert(placed_spans_.begin() + (at - placed_.begin()),
                           spans_[id]);
      placed_.insert(at, Placed{offset, offset + items_[id].bytes, id});
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
    int64_t offset;
    int64_t end;
    int32_t id;
  };

  static bool Conflict(const Use& a, const Use& b) {
    return a.phase == b.phase && !Precedes(a, b) && !Precedes(b, a);
  }
  bool Conflict(int32_t a, int32_t b) const {
    if (!has_more_uses_[a] && !has_more_uses_[b])
      return Conflict(first_uses_[a], first_uses_[b]);
    for (const Use& x : items_[a].uses)
      for (const Use& y : items_[b].uses)
        if (Conflict(x, y)) return true;
    return false;
  }

  int64_t Find(int32_t id, Fit fit) {
    const Span span = spans_[id];
    const int64_t bytes = items_[id].bytes;
    const int64_t alignment = items_[id].alignment;
    int64_t cursor = 0;  // aligned; all conflicting items so far end before it
    int64_t best = -1;
    int64_t best_gap = std::numeric_limits<int64_t>::max();
    // Blocks are filtered by time without branches first: most items pass by.
    constexpr size_t kBlock = 256;
    std::array<int32_t, kBlock> candidates;
    for (size_t block = 0; block < placed_.size(); block += kBlock) {
      const size_t end = std::min(block + kBlock, placed_.size());
      int num_candidates = 0;
      for (size_t i = block; i < end; ++i) {
        candidates[num_candidates] = static_cast<int32_t>(i);
        num_candidates += int{placed_spans_[i].release >= span.begin} &
                          int{span.release >= placed_spans_[i].begin};
      }
      tests_ += static_cast<int64_t>(end - block) + 4 * num_candidates;
      for (int c = 0; c < num_candidates; ++c) {
        const Placed& other = placed_[candidates[c]];
        if (other.end <= cursor || !Conflict(id, other.id)) continue;
        const int64_t gap = other.offset - cursor;
        if (gap >= bytes && gap < best_gap) {
          if (fit == Fit::kLowest) return cursor;
          best = cursor;
          best_gap = gap;
        }
        cursor = std::max(cursor,
                          (other.end + alignment - 1) / alignment * alignment);
      }
    }
    return best >= 0 ? best : cursor;
  }

  const std::vector<PlacementItem>& items_;
  std::vector<Span> spans_;
  std::vector<Use> first_uses_;
  std::vector<bool> has_more_uses_;
  // By offset.
  std::vector<Span> placed_spans_;
  std::vector<Placed> placed_;
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
  double largest = 0;
  for (size_t i = 0; i < size; ++i) largest = std::max(largest, bytes(i));
  // Items of at least such a part of the largest first, in order of time (or
  // backwards): gathers and gradients roll through few slots.
  const auto rolling = [&](double part, int direction) {
    return OrderBy(size, [&, part, direction](size_t i) {
      const double begin = items[i].uses[0].begin;
      return bytes(i) > part * largest ? Key(1e12 - direction * begin, bytes(i))
                                       : Key(length(i), bytes(i));
    });
  };
  const std::vector<std::function<std::vector<int32_t>()>> make_orders = {
      [&] {
        return OrderBy(size,
                       [&](size_t i) { return Key(length(i), bytes(i)); });
      },
      [&] {
        return OrderBy(size,
                       [&](size_t i) { return Key(bytes(i), length(i)); });
      },
      [&] {
        return OrderBy(size, [&](size_t i) {
          return Key(length(i) * bytes(i), bytes(i));
        });
      },
      [&] { return rolling(0.9, 1); },
      [&] { return rolling(0.2, -1); },
      [&] {
        return OrderBy(size, [&](size_t i) {
          return Key(-items[i].uses[0].begin, bytes(i));
        });
      },
  };

  // Two thousandths are not worth the search.
  good_enough += good_enough / 500;
  Placer placer(items);
  PlacementResult best;
  best.bytes = std::numeric_limits<int64_t>::max();
  struct Start {
    std::vector<int32_t> order;
    PlacementResult result;
  };
  std::vector<Start> starts;
  for (const auto& make_order : make_orders) {
    Start start{make_order(), {}};
    start.result.bytes = std::numeric_limits<int64_t>::max();
    for (const Fit fit : {Fit::kLowest, Fit::kTightest}) {
      PlacementResult result = placer.Attempt(start.order, fit);
      if (result.bytes <= good_enough) return result;
      if (result.bytes < start.result.bytes) start.result = std::move(result);
    }
    if (start.result.bytes < best.bytes) best = start.result;
    starts.push_back(std::move(start));
    if (placer.tests() > kMaxTests) break;
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](const Start& a, const Start& b) {
                     return a.result.bytes < b.result.bytes;
                   });

  int attempts = 0;
  for (Start& start : starts) {
    std::vector<int32_t>& order = start.order;
    PlacementResult current = std::move(start.result);
    int64_t best_here = current.bytes;
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
