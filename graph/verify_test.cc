#include <algorithm>
#include <functional>
#include <string>

#include "graph/test_graph.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

StepPlan ModelPlan(int lanes, const TestModel& model = {}) {
  return MakePlan(MakeModel(model).graph(), lanes);
}

// Expects a refusal that says all of `words`.
void ExpectRefused(const StepPlan& plan,
                   const std::vector<std::string>& words) {
  const absl::Status status = Verify(plan);
  ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  for (const std::string& word : words)
    EXPECT_NE(status.message().find(word), absl::string_view::npos)
        << "no \"" << word << "\" in: " << status.message();
}

NodeId FindNode(const Graph& graph, absl::string_view op, int skip = 0) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op->name == op && skip-- == 0)
      return static_cast<NodeId>(i);
  }
  return kNone;
}

// Takes a node out of its phase and schedule.
void Remove(StepPlan* plan, NodeId id) {
  for (size_t p = 0; p < plan->schedules.size(); ++p) {
    std::vector<NodeId>& nodes = plan->graph.phases[p].nodes;
    nodes.erase(std::remove(nodes.begin(), nodes.end(), id), nodes.end());
    PhaseSchedule& schedule = plan->schedules[p];
    const auto at = std::find(schedule.order.begin(), schedule.order.end(), id);
    if (at == schedule.order.end()) continue;
    schedule.lanes.erase(schedule.lanes.begin() +
                         (at - schedule.order.begin()));
    schedule.order.erase(at);
    schedule.edges.erase(
        std::remove_if(
            schedule.edges.begin(), schedule.edges.end(),
            [id](const Edge& e) { return e.from == id || e.to == id; }),
        schedule.edges.end());
  }
}

TEST(VerifyTest, AcceptsModels) {
  for (const int lanes : {1, 2, 3, 4}) {
    for (const int layers : {1, 2, 5}) {
      const StepPlan plan = ModelPlan(lanes, {.layers = layers, .world = 4});
      EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
    }
  }
}

TEST(VerifyTest, AcceptsRandomGraphsAndRefusesEachWithoutADataEdge) {
  int removed = 0;
  for (int seed = 0; seed < 300; ++seed) {
    StepPlan plan = RandomPlan(seed);
    const absl::Status status = Verify(plan);
    ASSERT_TRUE(status.ok()) << seed << ": " << status;
    for (size_t p = 0; p < plan.schedules.size(); ++p) {
      std::vector<Edge>& edges = plan.schedules[p].edges;
      for (size_t e = 0; e < edges.size(); ++e) {
        const Edge edge = edges[e];
        if (edge.kind != EdgeKind::kData) continue;
        edges.erase(edges.begin() + e);
        ASSERT_FALSE(Verify(plan).ok())
            << seed << ": " << PrintNode(plan.graph, edge.from) << " -> "
            << PrintNode(plan.graph, edge.to);
        edges.insert(edges.begin() + e, edge);
        ++removed;
      }
    }
  }
  EXPECT_GT(removed, 5000);
}

TEST(VerifyTest, RefusesModelsWithoutADataEdge) {
  for (const int lanes : {2, 4}) {
    const StepPlan plan = ModelPlan(lanes, {.layers = 4});
    for (size_t p = 0; p < plan.schedules.size(); ++p) {
      for (size_t e = 0; e < plan.schedules[p].edges.size(); ++e) {
        if (plan.schedules[p].edges[e].kind != EdgeKind::kData) continue;
        StepPlan broken = plan;
        broken.schedules[p].edges.erase(broken.schedules[p].edges.begin() + e);
        ExpectRefused(broken, {"is not ordered after"});
      }
    }
  }
}

TEST(VerifyTest, RefusesMovedOffsets) {
  const StepPlan plan = ModelPlan(4);
  for (size_t b = 0; b < plan.graph.buffers.size(); ++b) {
    for (const int64_t by : {64, -64}) {
      StepPlan broken = plan;
      broken.memory.offsets[b] += by;
      ExpectRefused(broken, {plan.graph.buffers[b].name, "is placed at"});
    }
  }
}

// The same where nothing but the bytes themselves can tell.
TEST(VerifyTest, RefusesMovedOffsetsOfUnalignedBuffers) {
  TestGraph test = MakeModel({.layers = 3, .nodes_per_layer = 3, .padding = 0});
  for (Buffer& buffer : test.graph().buffers) buffer.alignment = 4;
  const StepPlan plan = MakePlan(test.graph(), 4);
  ASSERT_TRUE(Verify(plan).ok());
  // Only lives beside its neighbours when the arena is full: at the peak.
  ASSERT_EQ(plan.memory.transient_bytes, plan.memory.transient_lower_bound);
  for (BufferId buffer : plan.memory.live_at_peak) {
    for (const int64_t by : {64, -64}) {
      StepPlan broken = plan;
      broken.memory.offsets[buffer] += by;
      EXPECT_FALSE(Verify(broken).ok()) << plan.graph.buffers[buffer].name;
    }
  }
}

TEST(VerifyTest, RefusesOverlappingPersistentBuffers) {
  StepPlan plan = ModelPlan(1);
  std::vector<BufferId> persistent;
  for (size_t b = 0; b < plan.graph.buffers.size(); ++b) {
    if (plan.graph.buffers[b].lifetime != Lifetime::kPhase)
      persistent.push_back(static_cast<BufferId>(b));
  }
  plan.memory.offsets[persistent[1]] = plan.memory.offsets[persistent[0]];
  ExpectRefused(plan, {"are persistent and share"});
}

TEST(VerifyTest, RefusesShrunkBuffersAndArenas) {
  const StepPlan plan = ModelPlan(4);
  for (size_t b = 0; b < plan.graph.buffers.size(); ++b) {
    if (plan.graph.buffers[b].name == "step_state")
      continue;  // one field of it
    StepPlan broken = plan;
    broken.graph.buffers[b].bytes -= 4;
    ExpectRefused(broken, {"touches bytes", plan.graph.buffers[b].name});
  }
  StepPlan broken = plan;
  broken.memory.arena_bytes -= 256;
  broken.memory.transient_bytes -= 256;
  ExpectRefused(broken, {"is placed at"});
}

TEST(VerifyTest, RefusesSwappedCollectives) {
  const StepPlan plan = ModelPlan(4, {.layers = 4});
  std::vector<size_t> collectives;
  const std::vector<NodeId>& order = plan.schedules[0].order;
  for (size_t i = 0; i < order.size(); ++i) {
    if (plan.graph.nodes[order[i]].attributes.Has("size"))
      collectives.push_back(i);
  }
  ASSERT_GE(collectives.size(), 10u);
  for (size_t i = 0; i + 1 < collectives.size(); ++i) {
    StepPlan broken = plan;
    PhaseSchedule& schedule = broken.schedules[0];
    std::swap(schedule.order[collectives[i]],
              schedule.order[collectives[i + 1]]);
    std::swap(schedule.lanes[collectives[i]],
              schedule.lanes[collectives[i + 1]]);
    EXPECT_FALSE(Verify(broken).ok())
        << PrintNode(plan.graph, order[collectives[i]]) << " and "
        << PrintNode(plan.graph, order[collectives[i + 1]]);
  }
}

TEST(VerifyTest, RefusesAGatherAfterItsReader) {
  for (const int lanes : {1, 4}) {
    StepPlan plan = ModelPlan(lanes);
    const NodeId gather = FindNode(plan.graph, "all_gather", 1);
    const ValueId gathered = plan.graph.nodes[gather].results[0];
    PhaseSchedule& schedule = plan.schedules[0];
    size_t from = 0, to = 0;
    for (size_t i = 0; i < schedule.order.size(); ++i) {
      if (schedule.order[i] == gather) from = i;
      for (ValueId operand : plan.graph.nodes[schedule.order[i]].operands) {
        if (to == 0 && plan.graph.values[operand].buffer ==
                           plan.graph.values[gathered].buffer) {
          to = i;
        }
      }
    }
    ASSERT_LT(from, to);
    std::rotate(schedule.order.begin() + from,
                schedule.order.begin() + from + 1,
                schedule.order.begin() + to + 1);
    std::rotate(schedule.lanes.begin() + from,
                schedule.lanes.begin() + from + 1,
                schedule.lanes.begin() + to + 1);
    EXPECT_FALSE(Verify(plan).ok());
    // Without the edge it is the order or the bytes that tell.
    schedule.edges.erase(
        std::remove_if(
            schedule.edges.begin(), schedule.edges.end(),
            [&](const Edge& e) { return e.from == gather || e.to == gather; }),
        schedule.edges.end());
    EXPECT_FALSE(Verify(plan).ok());
    // Nor does it help to move it in the program.
    plan.graph.phases[0].nodes = schedule.order;
    ExpectRefused(plan, {"which nothing has written"});
  }
}

TEST(VerifyTest, RefusesWrongGroups) {
  StepPlan plan = ModelPlan(4);
  plan.graph.groups.push_back({"replicate", 3, 2});
  plan.graph.groups.push_back({"other", 2, 2});
  ASSERT_TRUE(Verify(plan).ok());
  const NodeId gather = FindNode(plan.graph, "all_gather", 1);
  Attributes& attributes = plan.graph.nodes[gather].attributes;
  attributes.SetString("group", "shard");
  ExpectRefused(plan, {"there is no group \"shard\""});
  attributes.SetString("group", "replicate");
  ExpectRefused(plan, {"group \"replicate\" has 3 ranks, not 2"});
  attributes.SetInt("size", 3);
  ExpectRefused(plan, {"over 3 ranks does not give"});
  attributes.SetString("group", "other").SetInt("size", 2);
  ExpectRefused(plan, {"name different groups"});
}

TEST(VerifyTest, RefusesAMissingAccumulateOfAShard) {
  const StepPlan plan = ModelPlan(4);
  for (int i = 0; i < 4; ++i) {
    StepPlan broken = plan;
    Remove(&broken, FindNode(plan.graph, "accumulate", i));
    ExpectRefused(broken, {"which no phase writes: accumulate is missing"});
  }
}

TEST(VerifyTest, RefusesAContributionThatReplacesTheFirst) {
  StepPlan plan = ModelPlan(4);
  // The embedding's contribution to the root's gradient.
  for (Node& node : plan.graph.nodes) {
    if (node.attributes.Int("accumulate") == 0) continue;
    node.attributes.SetInt("accumulate", 0);
    node.operands.pop_back();
    ExpectRefused(plan, {"a contribution is lost"});
  }
}

// Though the first was read: by what else its gradient flows to.
TEST(VerifyTest, RefusesAVersionThatIsNotTiedToTheOneBefore) {
  for (const bool tied : {true, false}) {
    TestGraph test;
    test.SetPhase("p");
    const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
    const BufferId dx = test.AddBuffer("dx", 64);
    test.Compute({x}, {dx});
    test.Compute({dx}, {x});
    const ValueId old = test.View(dx);
    test.Add("compute", {test.View(x), old}, {test.View(dx)},
             Attributes().SetInt("accumulate", tied));
    test.Compute({dx}, {x});
    const StepPlan plan = MakePlan(test.graph(), 1);
    if (tied) {
      EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
    } else {
      ExpectRefused(plan, {"does not add to it"});
    }
  }
}

// Whatever the passes make of a graph that lacks a node.
TEST(VerifyTest, RefusesAGradientWithoutAContribution) {
  const Graph graph = MakeModel({}).graph();
  int tried = 0;
  for (size_t i = 0; i < graph.phases[0].nodes.size(); ++i) {
    const Node& node = graph.nodes[graph.phases[0].nodes[i]];
    if (node.op->name != "compute" || node.attributes.Has("accumulate") ||
        graph.buffer_of(node.results[0]).kind != MemoryKind::kGradient) {
      continue;
    }
    Graph broken = graph;
    broken.phases[0].nodes.erase(broken.phases[0].nodes.begin() + i);
    ExpectRefused(MakePlan(broken, 4),
                  {"a gradient that nothing has contributed to"});
    ++tried;
  }
  EXPECT_EQ(tried, 3 * 4);
}

TEST(VerifyTest, PaddingMayPassButNotIntoComputing) {
  StepPlan plan = ModelPlan(1, {.padding = 64});
  ASSERT_TRUE(Verify(plan).ok());
  // A node that reads all of a gradient, padding included.
  for (NodeId id : plan.graph.phases[0].nodes) {
    Node& node = plan.graph.nodes[id];
    if (node.op->name != "reduce_scatter") continue;
    const OpDef* compute = plan.graph.nodes[FindNode(plan.graph, "compute")].op;
    node.op = compute;
    node.attributes = Attributes();
    break;
  }
  ExpectRefused(plan, {"which nothing has written"});
}

// Columns that a missing node should have written.
TEST(VerifyTest, RefusesColumnsThatNothingHasWritten) {
  // [8, 8]: q in columns [0, 4), k in [4, 8).
  const auto plan_with = [](bool writes_k, int64_t column, int64_t columns) {
    TestGraph test;
    test.SetPhase("p");
    const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
    const BufferId y = test.AddBuffer("y", 64, Lifetime::kRun);
    const BufferId qk = test.AddBuffer("qk", 64);
    const auto view = [&](int64_t first, int64_t width) {
      const ValueId value = test.View(qk, first, 1);
      test.graph().values[value].type =
          TensorType(DType::kF32, {8, width}, {8, 1});
      return value;
    };
    test.Add("compute", {test.View(x)}, {view(0, 4)});
    if (writes_k) test.Add("compute", {test.View(x)}, {view(4, 4)});
    test.Add("compute", {view(column, columns)}, {test.View(x)});
    if (writes_k) test.Add("compute", {view(4, 4)}, {test.View(y)});
    return MakePlan(test.graph(), 1);
  };
  for (const int64_t columns : {2, 4, 8})
    EXPECT_TRUE(Verify(plan_with(true, 0, columns)).ok());
  EXPECT_TRUE(Verify(plan_with(true, 2, 4)).ok());
  EXPECT_TRUE(Verify(plan_with(false, 1, 3)).ok());
  for (const int64_t first : {2, 3, 4})
    ExpectRefused(plan_with(false, first, 4), {"has written in full"});
  ExpectRefused(plan_with(false, 0, 8), {"nothing has written in full"});
}

TEST(VerifyTest, RefusesALossThatNobodyComputed) {
  for (const bool computed : {true, false}) {
    TestGraph test;
    test.SetPhase("micro");
    const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
    const BufferId loss = test.AddBuffer("loss", 2, Lifetime::kRun);
    const BufferId stats = test.AddBuffer("stats", 2);
    if (computed) test.Compute({x}, {stats});
    test.Accumulate(loss, stats);
    const StepPlan plan = MakePlan(test.graph(), 2);
    if (computed) {
      EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
    } else {
      ExpectRefused(plan, {"puts what", "into loss, which is kept"});
    }
  }
}

// Of sums that are reduced over ranks before somebody reads them, one is not
// computed.
TEST(VerifyTest, RefusesAReductionOfNothingThatIsRead) {
  for (const bool computed : {true, false}) {
    TestGraph test;
    test.SetPhase("update");
    const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
    const BufferId sums = test.AddBuffer("sums", 2);
    test.Add("compute", {test.View(x)}, {test.View(sums, 0, 1)});
    if (computed) test.Add("compute", {test.View(x)}, {test.View(sums, 1, 1)});
    test.Add("all_reduce", {test.View(sums)}, {test.View(sums)},
             Attributes().SetString("group", "world").SetInt("size", 2),
             LaneKind::kReduce);
    test.Compute({sums}, {x});
    const StepPlan plan = MakePlan(test.graph(), 2);
    if (computed) {
      EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
    } else {
      ExpectRefused(plan, {"reads all of sums", "all_reduce", "let it in"});
    }
  }
}

// Two ranks, elements [0, 100) of 128 are parameters.
enum class Route {
  kOneRank,   // the whole gradient is the shard
  kHybrid,    // scattered, then summed over replicas, of which there is one
  kInUpdate,  // accumulated whole, scattered when micro-batches are done
  kTwice,     // scattered twice
  kReplaced,  // scattered straight into the shard
  kNamed,     // the stage is an output
  kRead,      // all of the shard is read
};
StepPlan GradientPlan(Route route, int64_t written) {
  TestGraph test(route == Route::kOneRank ? 1 : 2);
  const int64_t n =
      route == Route::kOneRank || route == Route::kInUpdate ? 128 : 64;
  test.SetPhase("micro");
  const BufferId x = test.AddBuffer("x", 128, Lifetime::kRun);
  const BufferId whole = test.AddBuffer("whole", 128);
  const BufferId shard =
      test.AddBuffer("shard", n, Lifetime::kStep, MemoryKind::kGradientShard);
  test.Add("compute", {test.View(x)}, {test.View(whole, 0, written)});
  BufferId stage = whole;
  if (n == 64 && route != Route::kReplaced) {
    stage = test.AddBuffer("stage", 64);
    test.ReduceScatter(whole, stage);
  }
  if (route == Route::kHybrid) {
    test.graph().groups.push_back({"replicate", 1, 2});
    test.Add("all_reduce", {test.View(stage)}, {test.View(stage)},
             Attributes().SetString("group", "replicate").SetInt("size", 1),
             LaneKind::kReduce);
  }
  if (route == Route::kTwice) {
    const BufferId second = test.AddBuffer("second", 32);
    test.ReduceScatter(stage, second);
    test.Compute({second}, {x});
  }
  if (route == Route::kReplaced) {
    test.ReduceScatter(whole, shard);
  } else {
    test.Accumulate(shard, stage);
  }
  if (route == Route::kNamed) test.graph().outputs["sum"] = test.View(shard);
  test.SetPhase("update");
  const BufferId master = test.AddBuffer(
      "master", route == Route::kOneRank ? 128 : 64, Lifetime::kRun);
  if (route == Route::kRead) test.Compute({shard}, {x});
  BufferId reduced = shard;
  if (route == Route::kInUpdate) {
    reduced = test.AddBuffer("reduced", 64);
    test.ReduceScatter(shard, reduced);
  }
  test.Sgd(master, reduced, {0, 60, 0, 60, 100, 1});
  return MakePlan(test.graph(), 2);
}

TEST(VerifyTest, FollowsPaddingToTheOptimizer) {
  for (const Route route :
       {Route::kOneRank, Route::kHybrid, Route::kInUpdate}) {
    for (const int64_t written : {100, 127, 128})
      EXPECT_TRUE(Verify(GradientPlan(route, written)).ok())
          << Verify(GradientPlan(route, written));
    for (const int64_t written : {1, 59, 64, 99}) {
      ExpectRefused(GradientPlan(route, written),
                    {"sgd", "a gradient that nothing has contributed to"});
    }
  }
}

TEST(VerifyTest, RefusesPaddingThatIsReadOrKept) {
  ExpectRefused(GradientPlan(Route::kTwice, 100), {"cannot be followed"});
  ExpectRefused(GradientPlan(Route::kReplaced, 128),
                {"replaces shard", "accumulate is missing"});
  EXPECT_TRUE(Verify(GradientPlan(Route::kNamed, 128)).ok());
  ExpectRefused(GradientPlan(Route::kNamed, 100), {"output sum"});
  EXPECT_TRUE(Verify(GradientPlan(Route::kRead, 128)).ok());
  ExpectRefused(GradientPlan(Route::kRead, 100), {"reads all of shard"});
}

// Whatever phase comes first.
TEST(VerifyTest, FollowsPaddingThroughPhasesInAnyOrder) {
  StepPlan plan = GradientPlan(Route::kRead, 100);
  std::swap(plan.graph.phases[0], plan.graph.phases[1]);
  std::swap(plan.schedules[0], plan.schedules[1]);
  plan.schedules[0].phase = 0;
  plan.schedules[1].phase = 1;
  ExpectRefused(plan, {"reads all of shard"});
}

TEST(VerifyTest, RefusesAReductionThatNothingReads) {
  TestGraph test;
  test.SetPhase("p");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const BufferId sums = test.AddBuffer("sums", 64);
  test.Compute({x}, {sums});
  test.Compute({sums}, {x});
  test.Add("all_reduce", {test.View(sums)}, {test.View(sums)},
           Attributes().SetString("group", "world").SetInt("size", 2),
           LaneKind::kReduce);
  ExpectRefused(MakePlan(test.graph(), 1), {"computes what nothing reads"});
}

TEST(VerifyTest, RefusesResultsThatLeaveTheirOperand) {
  StepPlan plan = ModelPlan(1);
  Node& node = plan.graph.nodes[FindNode(plan.graph, "accumulate")];
  plan.graph.values[node.results[0]].offset += 4;
  plan.graph.values[node.results[0]].type.shape[0] -= 1;
  ExpectRefused(plan, {"updates operand 0 in place but lies in"});
}

TEST(VerifyTest, RefusesNodesThatNobodyNeeds) {
  TestGraph test = MakeModel({});
  test.SetPhase("micro");
  test.Compute({0}, {test.AddBuffer("unread", 64)});
  ExpectRefused(MakePlan(test.graph(), 4), {"computes what nothing reads"});
}

// Of a norm's results one must be read: its statistics are for a gradient that
// may not be there, and may be all that is recomputed. Of others, each.
TEST(VerifyTest, RefusesResultsThatNobodyReads) {
  for (const char* op : {"rms_norm", "compute"}) {
    for (const int read : {0b00, 0b01, 0b10, 0b11}) {
      TestGraph test;
      test.SetPhase("p");
      const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
      const BufferId y = test.AddBuffer("y", 64);
      const BufferId rstd = test.AddBuffer("rstd", 1);
      test.Add(op, {test.View(x)}, {test.View(y), test.View(rstd)});
      if ((read & 0b01) != 0) test.Compute({y}, {x});
      if ((read & 0b10) != 0) test.Compute({rstd, x}, {x});
      const StepPlan plan = MakePlan(test.graph(), 1);
      const bool norm = test.graph().nodes[0].op->name == "rms_norm";
      if (read == 0b11 || (norm && read != 0)) {
        EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
      } else {
        ExpectRefused(plan, {"computes what nothing reads"});
      }
    }
  }
}

TEST(VerifyTest, RefusesOutputsThatAreOverwritten) {
  TestGraph test;
  test.SetPhase("p");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const BufferId logits = test.AddBuffer("logits", 64);
  const BufferId scratch = test.AddBuffer("scratch", 64);
  test.Compute({x}, {logits});
  test.Compute({logits}, {scratch});
  test.Compute({scratch}, {x});
  test.graph().outputs["logits"] = test.View(logits);
  StepPlan plan = MakePlan(test.graph(), 1);
  ASSERT_TRUE(Verify(plan).ok());
  const BufferId late = test.AddBuffer("late", 64);
  test.Compute({x}, {late});
  test.Compute({late}, {x});
  plan = MakePlan(test.graph(), 1);
  ASSERT_TRUE(Verify(plan).ok());
  plan.memory.offsets[late] = plan.memory.offsets[logits];
  ExpectRefused(plan, {"output logits has lost"});
}

TEST(VerifyTest, RefusesBuffersThatLoseTheirBytesBeforeTheLastReader) {
  TestGraph test;
  test.SetPhase("p");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const BufferId a = test.AddBuffer("a", 64);
  const BufferId b = test.AddBuffer("b", 64);
  test.Compute({x}, {a});
  test.Compute({x}, {b});
  test.Compute({a, b}, {x});
  StepPlan plan = MakePlan(test.graph(), 1);
  ASSERT_TRUE(Verify(plan).ok());
  plan.memory.offsets[b] = plan.memory.offsets[a];
  ExpectRefused(plan, {"reads bytes [0, 256) of a", "were given to b"});
}

// Strided views: two nodes write columns of one buffer.
TEST(VerifyTest, ColumnsAreToldApart) {
  const auto plan_with = [](int64_t column) {
    TestGraph test;
    test.SetPhase("p");
    const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
    const BufferId qk = test.AddBuffer("qk", 64);
    const ValueId q = test.View(qk, 0, 60);
    const ValueId k = test.View(qk, column, 60);
    for (ValueId value : {q, k})
      test.graph().values[value].type = TensorType(DType::kF32, {8, 4}, {8, 1});
    test.Add("compute", {test.View(x)}, {q});
    test.Add("compute", {test.View(x)}, {k});
    test.Add("compute", {test.View(qk)}, {test.View(x)});
    return MakePlan(test.graph(), 1);
  };
  EXPECT_TRUE(Verify(plan_with(4)).ok()) << Verify(plan_with(4));
  ExpectRefused(plan_with(3), {"a contribution is lost"});
}

TEST(VerifyTest, RefusesSchedulesThatAreNoPermutation) {
  const StepPlan plan = ModelPlan(4);
  StepPlan broken = plan;
  broken.schedules[0].order[0] = broken.schedules[0].order[1];
  ExpectRefused(broken, {"is ordered twice"});
  broken = plan;
  broken.schedules[0].order.pop_back();
  ExpectRefused(broken, {"nodes, its order"});
  broken = plan;
  broken.schedules[0].lanes[3] = 4;
  ExpectRefused(broken, {"is on lane 4 of 4"});
  broken = plan;
  broken.schedules.pop_back();
  ExpectRefused(broken, {"schedules for"});
  broken = plan;
  std::swap(broken.schedules[0].edges[0].from, broken.schedules[0].edges[0].to);
  ExpectRefused(broken, {"leads backwards"});
  broken = plan;
  std::swap(broken.schedules[0].edges[0], broken.schedules[0].edges[1]);
  ExpectRefused(broken, {"is not in sorted place"});
}

TEST(VerifyTest, ComputeMayNotBeReorderedAgainstTheProgram) {
  StepPlan plan = ModelPlan(1);
  std::swap(plan.graph.phases[1].nodes[0], plan.graph.phases[1].nodes[1]);
  ExpectRefused(plan, {"comes first in the program"});
}

}  // namespace
}  // namespace shardgraph
