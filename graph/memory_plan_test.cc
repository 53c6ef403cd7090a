#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "graph/order.h"
#include "graph/test_graph.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

// All pairs of buffers that share bytes, by brute force: each must be ordered
// in every phase that uses both.
void ExpectNoClash(const StepPlan& plan) {
  const Graph& graph = plan.graph;
  std::vector<std::vector<std::vector<int32_t>>> uses;  // phase, buffer
  std::vector<LaneClocks> clocks;
  for (const PhaseSchedule& schedule : plan.schedules) {
    clocks.push_back(ClocksOf(graph, schedule));
    uses.emplace_back(graph.buffers.size());
    for (size_t p = 0; p < schedule.order.size(); ++p) {
      std::vector<Access> accesses;
      AppendAccesses(graph, graph.node(schedule.order[p]), &accesses);
      for (const Access& access : accesses)
        uses.back()[access.buffer].push_back(static_cast<int32_t>(p));
    }
  }
  const auto all_before = [](const LaneClocks& clocks,
                             const std::vector<int32_t>& a,
                             const std::vector<int32_t>& b) {
    for (int32_t x : a)
      for (int32_t y : b)
        if (!clocks.Before(x, y)) return false;
    return true;
  };
  for (size_t a = 0; a < graph.buffers.size(); ++a) {
    const int64_t begin = plan.memory.offsets[a];
    if (begin == kNone) continue;
    EXPECT_EQ(begin % graph.buffers[a].alignment, 0);
    EXPECT_LE(begin + graph.buffers[a].bytes, plan.memory.arena_bytes);
    const bool persistent = graph.buffers[a].lifetime != Lifetime::kPhase;
    if (persistent) {
      EXPECT_LE(begin + graph.buffers[a].bytes, plan.memory.persistent_bytes);
    } else {
      EXPECT_GE(begin, plan.memory.persistent_bytes);
    }
    for (size_t b = 0; b < a; ++b) {
      const int64_t other = plan.memory.offsets[b];
      if (other == kNone || begin + graph.buffers[a].bytes <= other ||
          other + graph.buffers[b].bytes <= begin) {
        continue;
      }
      ASSERT_FALSE(persistent) << graph.buffers[a].name;
      ASSERT_EQ(graph.buffers[b].lifetime, Lifetime::kPhase);
      for (size_t p = 0; p < plan.schedules.size(); ++p) {
        ASSERT_TRUE(all_before(clocks[p], uses[p][a], uses[p][b]) ||
                    all_before(clocks[p], uses[p][b], uses[p][a]))
            << graph.buffers[a].name << " and " << graph.buffers[b].name;
      }
    }
  }
}

TEST(MemoryPlanTest, AChainNeedsTwoBuffers) {
  TestGraph test;
  test.SetPhase("p");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  BufferId last = x;
  for (int i = 0; i < 5; ++i) {
    const BufferId next = test.AddBuffer("y" + std::to_string(i), 256);
    test.Compute({last}, {next});
    last = next;
  }
  test.Compute({last}, {x});
  const StepPlan plan = MakePlan(test.graph(), 1);
  EXPECT_EQ(plan.memory.persistent_bytes, 256);
  EXPECT_EQ(plan.memory.transient_bytes, 2 * 1024);
  EXPECT_EQ(plan.memory.transient_lower_bound, 2 * 1024);
  EXPECT_EQ(plan.memory.arena_bytes, 256 + 2048);
  EXPECT_EQ(plan.memory.live_at_peak.size(), 2u);
  EXPECT_EQ(
      plan.memory.bytes_by_kind[static_cast<int>(MemoryKind::kActivation)],
      256 + 2048);
  ExpectNoClash(plan);
}

TEST(MemoryPlanTest, ConcurrentLanesShareNothing) {
  TestGraph test;
  test.SetPhase("p");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const BufferId y = test.AddBuffer("y", 64, Lifetime::kRun);
  const BufferId a = test.AddBuffer("a", 64);
  const BufferId b = test.AddBuffer("b", 128);
  test.Compute({x}, {a});
  test.Compute({a}, {x});
  // Unordered with the two nodes before.
  test.Add("compute", {test.View(y)}, {test.View(b)}, {}, LaneKind::kCopy);
  test.Add("compute", {test.View(b)}, {test.View(y)}, {}, LaneKind::kCopy);
  EXPECT_EQ(MakePlan(test.graph(), 1).memory.transient_bytes, 512);
  const StepPlan plan = MakePlan(test.graph(), 4);
  EXPECT_EQ(plan.memory.transient_bytes, 768);
  // Both may be there at once, though not in the total order.
  EXPECT_EQ(plan.memory.transient_lower_bound, 768);
  ExpectNoClash(plan);
}

TEST(MemoryPlanTest, PhasesShareTheTransientPart) {
  TestGraph test;
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const BufferId grad = test.AddBuffer("g", 64, Lifetime::kStep);
  const BufferId small = test.AddBuffer("small", 128);
  const BufferId large = test.AddBuffer("large", 1024);
  const BufferId both = test.AddBuffer("both", 64);
  const BufferId unused = test.AddBuffer("unused", 1 << 20);
  test.SetPhase("a");
  test.Compute({x}, {small, both});
  test.Compute({small, both}, {grad});
  test.SetPhase("b");
  test.Compute({grad}, {large, both});
  test.Compute({large, both}, {x});
  const StepPlan plan = MakePlan(test.graph(), 2);
  EXPECT_EQ(plan.memory.persistent_bytes, 512);
  EXPECT_EQ(plan.memory.transient_bytes, 4096 + 256);
  EXPECT_EQ(plan.memory.peak_phase, 1);
  EXPECT_EQ(plan.memory.offsets[unused], kNone);
  EXPECT_EQ(plan.memory.live_at_peak, (std::vector<BufferId>{large, both}));
  ExpectNoClash(plan);
}

TEST(MemoryPlanTest, OutputsStayUntilTheEndOfThePhase) {
  TestGraph test;
  test.SetPhase("p");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const BufferId logits = test.AddBuffer("logits", 64);
  const BufferId scratch = test.AddBuffer("scratch", 64);
  test.Compute({x}, {logits});
  test.Compute({x}, {scratch});
  test.Compute({scratch}, {x});
  EXPECT_EQ(MakePlan(test.graph(), 1).memory.transient_bytes, 256);
  test.graph().outputs["logits"] = test.View(logits);
  EXPECT_EQ(MakePlan(test.graph(), 1).memory.transient_bytes, 512);
}

TEST(MemoryPlanTest, AlignmentIsKept) {
  TestGraph test;
  test.SetPhase("p");
  const BufferId x = test.AddBuffer("x", 3, Lifetime::kRun);
  const BufferId w = test.AddBuffer("w", 5, Lifetime::kRun);
  const BufferId a = test.AddBuffer("a", 7);
  const BufferId b = test.AddBuffer("b", 9);
  const BufferId empty = test.AddBuffer("empty", 0);
  test.graph().buffers[w].alignment = 4096;
  test.graph().buffers[b].alignment = 4096;
  test.Compute({x}, {a, b, empty});
  test.Compute({a, b, empty}, {w});
  const StepPlan plan = MakePlan(test.graph(), 1);
  ExpectNoClash(plan);
  EXPECT_EQ(plan.memory.persistent_bytes % 4096, 0);
  EXPECT_EQ(plan.memory.transient_lower_bound, 16 * 4);
}

TEST(MemoryPlanTest, ModelsPackToTheLowerBound) {
  for (const int lanes : {1, 2, 4}) {
    for (const int layers : {1, 2, 12}) {
      TestGraph test = MakeModel({.layers = layers, .nodes_per_layer = 12});
      const StepPlan plan = MakePlan(test.graph(), lanes);
      ExpectNoClash(plan);
      EXPECT_LE(plan.memory.transient_bytes,
                1.02 * plan.memory.transient_lower_bound)
          << lanes << " lanes, " << layers << " layers";
    }
  }
}

// The peak of the model by formula: at the head all inputs of all nodes are
// saved, beside the last layer's and the root's parameters, the root's gradient
// and the gradient of the activations.
TEST(MemoryPlanTest, PeakOfTheModelByFormula) {
  const TestModel model = {.layers = 6, .nodes_per_layer = 4};
  TestGraph test = MakeModel(model);
  const StepPlan plan =
      MakePlan(test.graph(), 1, {.prefetch = 0, .max_units_in_flight = 1});
  // Of four activations of a layer one is four times as wide. Besides the saved
  // ones, the head's dx or the output of the last layer; one layer on, dx of
  // the wide one comes while the gradient of the layer is there.
  const int64_t saved = model.activation * 7 * model.layers;
  const int64_t at_head = saved + 2 * model.activation + 3 * model.parameters;
  const int64_t in_layer = saved + 4 * model.activation + 4 * model.parameters;
  EXPECT_GE(plan.memory.transient_lower_bound, at_head * 4);
  EXPECT_LE(plan.memory.transient_lower_bound, in_layer * 4);
  EXPECT_LE(plan.memory.transient_bytes,
            1.02 * plan.memory.transient_lower_bound);
}

TEST(MemoryPlanTest, RandomGraphsPackWellAndNeverClash) {
  std::vector<double> ratios;
  for (int seed = 0; seed < 1000; ++seed) {
    const StepPlan plan = RandomPlan(seed);
    ExpectNoClash(plan);
    if (plan.memory.transient_lower_bound == 0) continue;
    ratios.push_back(static_cast<double>(plan.memory.transient_bytes) /
                     plan.memory.transient_lower_bound);
    ASSERT_GE(ratios.back(), 1.0) << seed;
  }
  std::sort(ratios.begin(), ratios.end());
  EXPECT_LE(ratios[ratios.size() * 95 / 100], 1.10)
      << "largest " << ratios.back();
}

TEST(MemoryPlanTest, PlansAreDeterministic) {
  for (int seed = 0; seed < 20; ++seed) {
    const StepPlan a = RandomPlan(seed);
    const StepPlan b = RandomPlan(seed);
    EXPECT_EQ(PrintPlan(a), PrintPlan(b));
    EXPECT_EQ(a.hash, b.hash);
    EXPECT_EQ(a.hash.size(), 16u);
  }
}

}  // namespace
}  // namespace shardgraph
