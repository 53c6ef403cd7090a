// Schedules on the simulated backend: how long the compute lane waits for
// gathers and reductions, without hardware and without a wall clock.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/status_macros.h"
#include "tests/plan/preset_plan.h"
#include "tools/plan/timeline.h"

namespace shardgraph {
namespace {

constexpr int kComputeLane = 0;

// A Llama of equal blocks, four ranks, four lanes.
std::unique_ptr<PresetPlan> Blocks(int prefetch, int in_flight,
                                   absl::string_view more = "") {
  return PlanText(
      absl::StrCat(
          R"(model { llama { vocab_size: 64 hidden_size: 32 intermediate_size: 64
             num_hidden_layers: 12 num_attention_heads: 4
             max_position_embeddings: 16 } }
             data { batch_size: 4 } shard { prefetch: )",
          prefetch, " max_units_in_flight: ", in_flight, " ", more, " }"),
      4, TestTarget(4));
}

// Compute of a unit takes 1 forward and 2 backward, spread evenly over its
// nodes; a gather takes `ratio` and a reduction, of twice the bytes, 2 ratio;
// over two ranks in place of four two thirds of that.
NodeSeconds EqualUnits(const Graph& graph, double ratio) {
  std::map<std::pair<UnitId, Direction>, int> nodes;
  for (NodeId id : graph.phases[graph.FindPhase("micro")].nodes) {
    const Node& node = graph.nodes[id];
    if (node.lane == LaneKind::kCompute && node.unit != kNone)
      ++nodes[{node.unit, node.direction}];
  }
  return [nodes, ratio](const Graph& graph, const Node& node) {
    if (node.phase != graph.FindPhase("micro")) return 0.0;
    if (node.op->name == "all_gather")
      return node.attributes.Int("size") == 4 ? ratio : ratio * 2 / 3;
    if (node.op->name == "reduce_scatter") return 2 * ratio;
    if (node.lane != LaneKind::kCompute || node.unit == kNone) return 0.0;
    return (node.direction == Direction::kForward ? 1.0 : 2.0) /
           nodes.at({node.unit, node.direction});
  };
}

struct Result {
  double seconds = 0;
  double idle = 0;  // of the compute lane, until the phase ends
  int64_t gathers = 0;
};

Result Simulate(const PresetPlan& plan, double ratio) {
  const auto timelines =
      SimulatePlan(plan.plan(), EqualUnits(plan.graph(), ratio));
  SG_CHECK_OK(timelines);
  const PhaseTimeline& micro = (*timelines)[plan.graph().FindPhase("micro")];
  Result result;
  result.seconds = micro.seconds;
  result.idle = micro.seconds - micro.Busy(kComputeLane);
  for (const NodeTime& node : micro.nodes)
    result.gathers += plan.graph().nodes[node.node].op->name == "all_gather";
  return result;
}

class Overlap : public ::testing::TestWithParam<double> {};

TEST_P(Overlap, OnlyTheFirstGatherAndTheLastReductionAreSeen) {
  const double ratio = GetParam();
  const std::unique_ptr<PresetPlan> plan = Blocks(1, 2);
  const Result result = Simulate(*plan, ratio);
  std::printf("ratio %.2f: %.3f of %.3f idle (%.2f %%)\n", ratio, result.idle,
              result.seconds, 100 * result.idle / result.seconds);
  EXPECT_GE(result.idle, 3 * ratio - 1e-9);
  EXPECT_LE(result.idle, 3 * ratio + 0.02 * result.seconds);
}

TEST_P(Overlap, WithoutPrefetchEveryGatherIsSeen) {
  const double ratio = GetParam();
  const std::unique_ptr<PresetPlan> plan = Blocks(0, 2);
  const Result result = Simulate(*plan, ratio);
  // Each unit forward; backward again, but for the head, which is used last,
  // and the embedding, whose gradient does not read its table.
  const int64_t units =
      static_cast<int64_t>(plan->training->layout.units().size());
  EXPECT_EQ(result.gathers, 2 * units - 2);
  EXPECT_NEAR(result.idle, (2 * units - 2) * ratio + 2 * ratio, 1e-9);
}

// Resharded to pairs: backward gathers within them.
TEST_P(Overlap, GathersOfBackwardAreShorterInAReshardGroup) {
  const double ratio = GetParam();
  const std::unique_ptr<PresetPlan> plan =
      Blocks(0, 2, "reshard_group_size: 2");
  const Result result = Simulate(*plan, ratio);
  const int64_t units =
      static_cast<int64_t>(plan->training->layout.units().size());
  EXPECT_EQ(result.gathers, 2 * units - 2);
  EXPECT_NEAR(result.idle,
              units * ratio + (units - 2) * ratio * 2 / 3 + 2 * ratio, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Ratios, Overlap, ::testing::Values(0.25, 0.5, 1.0));

}  // namespace
}  // namespace shardgraph
