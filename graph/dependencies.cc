#include "graph/dependencies.h"

#include <algorithm>

namespace shardgraph {
namespace {

constexpr Dependencies kNobody = {kNone, kNone, kNone, kNone};

// Bytes of a buffer with one history. Nodes are program indices.
struct Segment {
  int64_t begin;
  int64_t end;
  int32_t writer = kNone;
  LaneKind writer_kind = LaneKind::kCompute;
  Dependencies readers = kNobody;  // last reader of each kind since the write
};

// The segments of one buffer, sorted, disjoint; untouched bytes have none.
class History {
 public:
  void Read(int64_t begin, int64_t end, int32_t node, LaneKind kind,
            Dependencies* dependencies) {
    const auto [first, last] = Cut(begin, end);
    for (size_t i = first; i < last; ++i) {
      Segment& segment = segments_[i];
      if (segment.writer != kNone && segment.writer != node)
        Add(segment.writer, segment.writer_kind, dependencies);
      segment.readers[static_cast<int>(kind)] = node;
    }
  }

  void Write(int64_t begin, int64_t end, int32_t node, LaneKind kind,
             Dependencies* dependencies) {
    const auto [first, last] = Cut(begin, end);
    for (size_t i = first; i < last; ++i) {
      const Segment& segment = segments_[i];
      if (segment.writer != kNone && segment.writer != node)
        Add(segment.writer, segment.writer_kind, dependencies);
      for (int k = 0; k < kNumLaneKinds; ++k) {
        if (segment.readers[k] != kNone && segment.readers[k] != node)
          Add(segment.readers[k], static_cast<LaneKind>(k), dependencies);
      }
    }
    segments_[first] = Segment{begin, end, node, kind};
    segments_.erase(segments_.begin() + first + 1, segments_.begin() + last);
  }

 private:
  static void Add(int32_t node, LaneKind kind, Dependencies* dependencies) {
    int32_t& latest = (*dependencies)[static_cast<int>(kind)];
    latest = std::max(latest, node);
  }

  // Makes [begin, end) the union of segments [first, last) and returns them.
  std::pair<size_t, size_t> Cut(int64_t begin, int64_t end) {
    const size_t first = Split(begin);
    int64_t covered = begin;
    size_t i = first;
    for (; i < segments_.size() && segments_[i].begin < end; ++i) {
      if (covered < segments_[i].begin) {
        segments_.insert(segments_.begin() + i,
                         Segment{covered, segments_[i].begin});
      } else if (segments_[i].end > end) {
        Split(end);
      }
      covered = segments_[i].end;
    }
    if (covered < end) {
      segments_.insert(segments_.begin() + i, Segment{covered, end});
      ++i;
    }
    return {first, i};
  }

  // Makes `at` a boundary; returns the first segment that begins there or
  // later.
  size_t Split(int64_t at) {
    const size_t i =
        std::partition_point(segments_.begin(), segments_.end(),
                             [at](const Segment& s) { return s.end <= at; }) -
        segments_.begin();
    if (i == segments_.size() || segments_[i].begin >= at) return i;
    Segment upper = segments_[i];
    upper.begin = at;
    segments_[i].end = at;
    segments_.insert(segments_.begin() + i + 1, upper);
    return i + 1;
  }

  std::vector<Segment> segments_;
};

}  // namespace

std::vector<Dependencies> DependenciesOf(const Graph& graph,
                                         const Phase& phase) {
  std::vector<Dependencies> result(phase.nodes.size(), kNobody);
  std::vector<History> histories(graph.buffers.size());
  std::vector<Access> accesses;
  for (size_t i = 0; i < phase.nodes.size(); ++i) {
    const Node& node = graph.nodes[phase.nodes[i]];
    accesses.clear();
    AppendAccesses(graph, node, &accesses);
    const int32_t index = static_cast<int32_t>(i);
    for (const bool write : {false, true}) {
      for (const Access& access : accesses) {
        if (access.write != write || access.begin >= access.end) continue;
        History& history = histories[access.buffer];
        if (write) {
          history.Write(access.begin, access.end, index, node.lane, &result[i]);
        } else {
          history.Read(access.begin, access.end, index, node.lane, &result[i]);
        }
      }
    }
  }
  return result;
}

}  // namespace shardgraph
