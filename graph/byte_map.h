// ByteMap: a map from bytes to states that stores runs of equal history once.
#ifndef GRAPH_BYTE_MAP_H_
#define GRAPH_BYTE_MAP_H_

#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace shardgraph {

template <typename State>
class ByteMap {
 public:
  // Calls visit(begin, end, state) for the runs that make up [begin, end), in
  // order; bytes not seen before are in state `initial`.
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, const State& initial, Visit visit) {
    if (begin >= end) return;
    Split(begin);
    Split(end);
    auto it = runs_.lower_bound(begin);
    while (begin < end) {
      if (it == runs_.end() || it->first > begin) {
        const int64_t stop =
            it == runs_.end() || it->first > end ? end : it->first;
        it = runs_.emplace_hint(it, begin, Run{stop, initial});
      }
      visit(begin, it->second.end, it->second.state);
      begin = it->second.end;
      ++it;
    }
  }

  // Makes [begin, end) one run.
  void Set(int64_t begin, int64_t end, State state) {
    if (begin >= end) return;
    Split(begin);
    Split(end);
    auto it = runs_.lower_bound(begin);
    if (it != runs_.end() && it->first == begin) {
      it->second = Run{end, std::move(state)};
    } else {
      it = runs_.emplace_hint(it, begin, Run{end, std::move(state)});
    }
    runs_.erase(std::next(it), runs_.lower_bound(end));
  }

 private:
  struct Run {
    int64_t end;
    State state;
  };

  void Split(int64_t at) {
    auto it = runs_.lower_bound(at);
    if (it == runs_.begin()) return;
    --it;
    if (it->second.end <= at) return;
    Run upper = it->second;
    it->second.end = at;
    runs_.emplace_hint(std::next(it), at, std::move(upper));
  }

  std::map<int64_t, Run> runs_;  // by begin
};

}  // namespace shardgraph

#endif  // GRAPH_BYTE_MAP_H_
