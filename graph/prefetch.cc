#include "graph/prefetch.h"

#include <algorithm>
#include <limits>

namespace shardgraph {
namespace {

// Gathers that make the parameters of one unit whole. Nodes are program
// indices.
struct Unshard {
  UnitId unit = kNone;
  Direction direction = Direction::kForward;
  std::vector<int32_t> gathers;
  int32_t first_reader = kNone;
  int32_t last_reader = kNone;
  int32_t turn = kNone;    // turn of the first reader
  bool enclosing = false;  // its readers enclose those of a later unshard
};

// Reductions of the gradients of one unit.
struct Reduction {
  UnitId unit = kNone;
  Direction direction = Direction::kForward;
  int32_t first_writer = kNone;  // of the gradients it reads
  int32_t last_reader = kNone;   // the last node to reduce or accumulate them
};

class Planner {
 public:
  Planner(const Graph& graph, const Phase& phase,
          const std::vector<Dependencies>& dependencies,
          const ScheduleOptions& options)
      : graph_(graph),
        phase_(phase),
        dependencies_(dependencies),
        options_(options) {}

  PrefetchPlan Run() {
    FindUnshards();
    FindReductions();
    PlaceGathers();
    ThrottleReductions();
    MakeOrder();
    std::stable_sort(
        plan_.waits.begin(), plan_.waits.end(),
        [](const ExtraWait& a, const ExtraWait& b) { return a.to < b.to; });
    return std::move(plan_);
  }

 private:
  const Node& node(int32_t i) const { return graph_.nodes[phase_.nodes[i]]; }
  int32_t size() const { return static_cast<int32_t>(phase_.nodes.size()); }

  void FindUnshards() {
    std::vector<int32_t> owner(graph_.buffers.size(), kNone);
    base_.resize(size() + 1);
    int32_t base = 0;
    int32_t turn_owner = kNone;
    bool turn_forward = false;
    for (int32_t i = 0; i < size(); ++i) {
      const Node& node = this->node(i);
      base_[i] = base;
      if (node.lane == LaneKind::kGather) {
        if (unshards_.empty() || unshards_.back().unit != node.unit ||
            unshards_.back().direction != node.direction ||
            unshards_.back().first_reader != kNone) {
          unshards_.emplace_back();
          unshards_.back().unit = node.unit;
          unshards_.back().direction = node.direction;
        }
        unshards_.back().gathers.push_back(i);
        for (ValueId result : node.results) {
          owner[graph_.values[result].buffer] =
              static_cast<int32_t>(unshards_.size() - 1);
        }
        continue;
      }
      ++base;
      int32_t latest = kNone;
      for (ValueId operand : node.operands) {
        const int32_t unshard = owner[graph_.values[operand].buffer];
        if (unshard == kNone) continue;
        latest = std::max(latest, unshard);
        unshards_[unshard].last_reader = i;
      }
      if (latest == kNone) continue;
      const bool forward = node.direction == Direction::kForward;
      if (latest != turn_owner || forward != turn_forward || turns_.empty()) {
        turns_.push_back(i);
        turn_owner = latest;
        turn_forward = forward;
      }
      for (ValueId operand : node.operands) {
        const int32_t unshard = owner[graph_.values[operand].buffer];
        if (unshard == kNone || unshards_[unshard].first_reader != kNone)
          continue;
        unshards_[unshard].first_reader = i;
        unshards_[unshard].turn = static_cast<int32_t>(turns_.size() - 1);
      }
    }
    base_[size()] = base;

    int32_t next_reader = std::numeric_limits<int32_t>::max();
    for (auto it = unshards_.rbegin(); it != unshards_.rend(); ++it) {
      if (it->first_reader == kNone) continue;
      it->enclosing = it->last_reader > next_reader;
      next_reader = std::min(next_reader, it->first_reader);
    }
  }

  void FindReductions() {
    std::vector<int32_t> writer(graph_.buffers.size(), kNone);
    std::vector<int32_t> reduction_of(graph_.buffers.size(), kNone);
    for (int32_t i = 0; i < size(); ++i) {
      const Node& node = this->node(i);
      if (node.lane != LaneKind::kReduce) {
        for (ValueId result : node.results) {
          int32_t& first = writer[graph_.values[result].buffer];
          if (first == kNone) first = i;
        }
        continue;
      }
      for (ValueId operand : node.operands) {
        const BufferId buffer = graph_.values[operand].buffer;
        if (graph_.buffers[buffer].kind != MemoryKind::kGradient ||
            graph_.buffers[buffer].lifetime != Lifetime::kPhase) {
          continue;
        }
        if (writer[buffer] == kNone) {
          // What was reduced in place is read once more, to be accumulated.
          if (reduction_of[buffer] != kNone)
            reductions_[reduction_of[buffer]].last_reader = i;
          continue;
        }
        if (reductions_.empty() || reductions_.back().unit != node.unit ||
            reductions_.back().direction != node.direction ||
            writer[buffer] > reductions_.back().last_reader) {
          reductions_.push_back({node.unit, node.direction, writer[buffer]});
        }
        Reduction& reduction = reductions_.back();
        reduction.first_writer =
            std::min(reduction.first_writer, writer[buffer]);
        reduction.last_reader = i;
        writer[buffer] = kNone;  // a later write is another gradient
        reduction_of[buffer] = static_cast<int32_t>(reductions_.size() - 1);
      }
    }
  }

  void PlaceGathers() {
    // Slot s: before the s-th node that is no gather.
    std::vector<int32_t> compute_before(base_[size()] + 1, kNone);
    for (int32_t i = 0; i < size(); ++i) {
      if (node(i).lane == LaneKind::kGather) continue;
      compute_before[base_[i] + 1] =
          node(i).lane == LaneKind::kCompute ? i : compute_before[base_[i]];
    }
    // Before the reductions that end a turn: compute waits for the gather.
    const auto right_behind_compute = [&](int32_t slot) {
      const int32_t before = compute_before[slot];
      return before == kNone ? 0 : base_[before] + 1;
    };
    std::vector<int32_t> slots(unshards_.size());
    std::vector<int32_t> previous;  // of those that count as in flight
    std::vector<int32_t> freed_by(unshards_.size(), kNone);
    for (size_t u = 0; u < unshards_.size(); ++u) {
      const Unshard& unshard = unshards_[u];
      const int32_t own = base_[unshard.gathers.front()];
      slots[u] = own;
      if (unshard.first_reader == kNone) continue;
      if (options_.prefetch > 0) {
        const int32_t turn = unshard.turn - options_.prefetch;
        slots[u] = std::min(own, turn < 0 ? 0 : base_[turns_[turn]]);
      }
      slots[u] = right_behind_compute(slots[u]);
      if (unshard.enclosing) continue;
      const size_t limit = options_.max_units_in_flight;
      if (previous.size() >= limit)
        freed_by[u] = unshards_[previous[previous.size() - limit]].last_reader;
      previous.push_back(static_cast<int32_t>(u));
    }
    for (size_t u = unshards_.size(); u-- > 1;)
      slots[u - 1] = std::min(slots[u - 1], slots[u]);

    int32_t earliest = 0;
    gather_slot_.assign(size(), kNone);
    for (size_t u = 0; u < unshards_.size(); ++u) {
      const Unshard& unshard = unshards_[u];
      const int32_t first = unshard.gathers.front();
      const bool freed_in_time = freed_by[u] != kNone && freed_by[u] < first;
      if (freed_in_time) earliest = std::max(earliest, base_[freed_by[u]] + 1);
      for (int32_t gather : unshard.gathers) {
        for (int k = 0; k < kNumLaneKinds; ++k) {
          const int32_t from = dependencies_[gather][k];
          if (from != kNone && static_cast<LaneKind>(k) != LaneKind::kGather)
            earliest = std::max(earliest, base_[from] + 1);
        }
        gather_slot_[gather] = std::max(slots[u], earliest);
      }
      if (unshard.first_reader == kNone) continue;
      const int32_t before = compute_before[gather_slot_[first]];
      if (before != kNone)
        plan_.waits.push_back({before, first, EdgeKind::kPrefetch});
      if (freed_in_time)
        plan_.waits.push_back({freed_by[u], first, EdgeKind::kThrottle});
    }
  }

  void ThrottleReductions() {
    const int64_t others = options_.max_units_in_flight - 1;
    for (const Reduction& reduction : reductions_) {
      const int64_t before =
          std::partition_point(reductions_.begin(), reductions_.end(),
                               [&](const Reduction& r) {
                                 return r.last_reader < reduction.first_writer;
                               }) -
          reductions_.begin();
      if (before <= others) continue;
      plan_.waits.push_back({reductions_[before - others - 1].last_reader,
                             reduction.first_writer, EdgeKind::kThrottle});
    }
  }

  void MakeOrder() {
    std::vector<int32_t> gathers;
    for (const Unshard& unshard : unshards_)
      gathers.insert(gathers.end(), unshard.gathers.begin(),
                     unshard.gathers.end());
    size_t next = 0;
    plan_.order.reserve(size());
    for (int32_t i = 0; i < size(); ++i) {
      if (node(i).lane == LaneKind::kGather) continue;
      for (; next < gathers.size() && gather_slot_[gathers[next]] <= base_[i];
           ++next) {
        plan_.order.push_back(gathers[next]);
      }
      plan_.order.push_back(i);
    }
    plan_.order.insert(plan_.order.end(), gathers.begin() + next,
                       gathers.end());
  }

  const Graph& graph_;
  const Phase& phase_;
  const std::vector<Dependencies>& dependencies_;
  const ScheduleOptions& options_;

  std::vector<Unshard> unshards_;
  std::vector<Reduction> reductions_;
  std::vector<int32_t> turns_;        // first node of each turn
  std::vector<int32_t> base_;         // nodes before it that are no gathers
  std::vector<int32_t> gather_slot_;  // by program index
  PrefetchPlan plan_;
};

}  // namespace

PrefetchPlan PlanPrefetch(const Graph& graph, const Phase& phase,
                          const std::vector<Dependencies>& dependencies,
                          const ScheduleOptions& options) {
  return Planner(graph, phase, dependencies, options).Run();
}

}  // namespace shardgraph
