// TestGraph: graphs of any shape for tests of the passes, over flat F32 values.
//
// Nodes of the made-up op "compute" read and write what they are told;
// collectives, accumulate and sgd are the real ops.
#ifndef GRAPH_TEST_GRAPH_H_
#define GRAPH_TEST_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/graph.h"
#include "graph/passes.h"
#include "graph/step_plan.h"

namespace shardgraph {

class TestGraph {
 public:
  explicit TestGraph(int32_t world = 2);

  Graph& graph() { return graph_; }

  void SetPhase(absl::string_view name);
  void SetUnit(absl::string_view name);
  void SetDirection(Direction direction) { direction_ = direction; }

  BufferId AddBuffer(absl::string_view name, int64_t elements,
                     Lifetime lifetime = Lifetime::kPhase,
                     MemoryKind kind = MemoryKind::kActivation);
  // Elements [begin, begin + elements) of a buffer; all of it by default.
  ValueId View(BufferId buffer, int64_t begin = 0, int64_t elements = -1);

  // `reads` and `writes` are whole buffers.
  NodeId Compute(const std::vector<BufferId>& reads,
                 const std::vector<BufferId>& writes);
  // Any op over any views. A result that is tied to an operand must be given
  // with the bytes of that operand.
  NodeId Add(absl::string_view op, const std::vector<ValueId>& operands,
             const std::vector<ValueId>& results, Attributes attributes = {},
             LaneKind lane = LaneKind::kCompute);
  // Collectives over the group "world", between whole buffers.
  NodeId Gather(BufferId shard, BufferId full);
  NodeId ReduceScatter(BufferId full, BufferId shard);
  // destination = contribution, or is added to it; on the reduce lane.
  NodeId Accumulate(BufferId destination, BufferId contribution);
  // Update of a flat parameter's shard; `segments` as in optimizer.h.
  NodeId Sgd(BufferId master, BufferId gradient, std::vector<int64_t> segments);

 private:
  Graph graph_;
  UnitId unit_ = kNone;
  PhaseId phase_ = kNone;
  Direction direction_ = Direction::kForward;
};

// A sharded model: a root unit with embedding and head, then equal layers, with
// forward, recomputed gathers, backward, reductions and an update.
struct TestModel {
  int layers = 3;
  int nodes_per_layer = 4;    // in forward; twice as many in backward
  int64_t activation = 4096;  // elements
  int64_t parameters = 8192;  // per unit, padding included
  int64_t padding = 64;       // of the parameters, at the end
  int32_t world = 2;
};
TestGraph MakeModel(const TestModel& model);

// Schedule and PlanMemory with so many lanes; both must succeed.
StepPlan MakePlan(const Graph& graph, int lanes,
                  const ScheduleOptions& options = {});

// A graph drawn from `seed`: one to three phases of up to 60 nodes on all
// lanes, with views, accumulation, persistent buffers, units and gathers; and
// its plan, with lanes and options drawn too.
TestGraph RandomGraph(uint64_t seed);
StepPlan RandomPlan(uint64_t seed);

}  // namespace shardgraph

#endif  // GRAPH_TEST_GRAPH_H_
