// TraceRecorder: when each node of some steps ran, written by the lanes into
// rings that are made beforehand.
//
// An executor that is given one records nothing until Start, and then two
// readings of two clocks and one store a node: no allocation, no lock. A full
// ring drops its oldest events.
//
// Threads: each lane's ring is written by that lane, the host's by the host
// thread. Start, Stop and reading are the host thread's, while no lane works.
#ifndef GRAPH_TRACE_H_
#define GRAPH_TRACE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <limits>
#include <vector>

namespace shardgraph {

// Nanoseconds of the steady clock.
struct TraceEvent {
  // Of the host thread, in place of a node.
  static constexpr int32_t kSynchronize = -1;  // waits for the lanes
  static constexpr int32_t kStep = -2;         // a whole step

  int64_t begin = 0;
  int64_t end = 0;
  int32_t step = 0;
  // The NodeId; of the host thread a PhaseId that it enqueued, or one of the
  // above.
  int32_t id = 0;
  // Of a lane's event: how long its thread ran between the event before and
  // this one, or longer, in nanoseconds of its processor time.
  int64_t ran_before = std::numeric_limits<int64_t>::max();

  friend bool operator==(const TraceEvent&, const TraceEvent&) = default;
};

class TraceRecorder {
 public:
  // `capacity`: events that each ring holds, at least 1.
  TraceRecorder(int num_lanes, int64_t capacity)
      : lanes_(num_lanes), host_(capacity) {
    for (Ring& lane : lanes_) lane = Ring(capacity);
  }

  int num_lanes() const { return static_cast<int>(lanes_.size()); }

  // Events from now on are of this step, until Stop.
  void Start(int32_t step) {
    step_ = step;
    started_ = Now();
    active_ = true;
  }
  void Stop() {
    active_ = false;
    host_.Add({started_, Now(), step_, TraceEvent::kStep});
  }

  bool active() const { return active_; }

  // A moment of the calling thread.
  struct Moment {
    int64_t time = 0;       // of the steady clock
    int64_t processor = 0;  // that the thread has used

    static Moment Now() {
      timespec used;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
      return {TraceRecorder::Now(), used.tv_sec * 1000000000 + used.tv_nsec};
    }
  };
  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void Add(int lane, int32_t node, const Moment& begin, const Moment& end) {
    Ring& ring = lanes_[lane];
    ring.Add({begin.time, end.time, step_, node,
              begin.processor - ring.last_processor});
    ring.last_processor = end.processor;
  }
  void AddHost(int32_t id, int64_t begin, int64_t end) {
    host_.Add({begin, end, step_, id});
  }

  // Oldest first.
  std::vector<TraceEvent> lane(int lane) const { return lanes_[lane].Events(); }
  std::vector<TraceEvent> host() const { return host_.Events(); }

 private:
  class Ring {
   public:
    int64_t last_processor = 0;  // at the end of the last event

    Ring() = default;
    explicit Ring(int64_t capacity) : events_(capacity) {}
    void Add(const TraceEvent& event) {
      events_[added_++ % events_.size()] = event;
    }
    std::vector<TraceEvent> Events() const {
      std::vector<TraceEvent> events = events_;
      if (added_ < events.size()) {
        events.resize(added_);
      } else if (!events.empty()) {
        std::rotate(events.begin(), events.begin() + added_ % events.size(),
                    events.end());
      }
      return events;
    }

   private:
    std::vector<TraceEvent> events_;
    // Lanes write beside each other.
    alignas(64) uint64_t added_ = 0;
  };

  std::vector<Ring> lanes_;
  Ring host_;
  bool active_ = false;
  int32_t step_ = 0;
  int64_t started_ = 0;
};

}  // namespace shardgraph

#endif  // GRAPH_TRACE_H_
