#include <algorithm>
#include <map>
#include <string>

#include "graph/order.h"
#include "graph/test_graph.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TargetSpec Target(int lanes) {
  TargetSpec target;
  target.set_name("test");
  target.set_lanes(lanes);
  return target;
}

std::vector<PhaseSchedule> MustSchedule(const Graph& graph, int lanes,
                                        const ScheduleOptions& options = {}) {
  auto schedules = Schedule(graph, Target(lanes), options);
  EXPECT_TRUE(schedules.ok()) << schedules.status();
  return *std::move(schedules);
}

// "3>5 data" for each edge, by node id.
std::vector<std::string> Edges(const PhaseSchedule& schedule) {
  const std::map<EdgeKind, std::string> names = {
      {EdgeKind::kData, "data"},
      {EdgeKind::kThrottle, "throttle"},
      {EdgeKind::kPrefetch, "prefetch"}};
  std::vector<std::string> edges;
  for (const Edge& edge : schedule.edges) {
    edges.push_back(std::to_string(edge.from) + ">" + std::to_string(edge.to) +
                    " " + names.at(edge.kind));
  }
  return edges;
}

using Strings = std::vector<std::string>;
using Nodes = std::vector<NodeId>;
using Lanes = std::vector<int32_t>;

// Four units of one compute node each: gather u is node 2u, its reader 2u + 1.
TestGraph Chain() {
  TestGraph test;
  test.SetPhase("micro");
  BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  for (const char* name : {"a", "b", "c", "d"}) {
    test.SetUnit(name);
    const BufferId shard =
        test.AddBuffer(std::string(name) + "/shard", 64, Lifetime::kRun);
    const BufferId full = test.AddBuffer(std::string(name) + "/full", 128);
    const BufferId y = test.AddBuffer(std::string(name) + "/y", 64);
    test.Gather(shard, full);
    test.Compute({x, full}, {y});
    x = y;
  }
  test.graph().outputs["y"] = test.View(x);
  return test;
}

TEST(ScheduleTest, OneLaneKeepsTheProgramAndNeedsNoEdges) {
  TestGraph test = Chain();
  const auto schedules = MustSchedule(test.graph(), 1);
  ASSERT_EQ(schedules.size(), 1u);
  EXPECT_EQ(schedules[0].order, test.graph().phases[0].nodes);
  EXPECT_EQ(schedules[0].lanes, Lanes(8, 0));
  EXPECT_TRUE(schedules[0].edges.empty());
}

TEST(ScheduleTest, PrefetchOneGathersAheadOfTheTurnBefore) {
  TestGraph test = Chain();
  const auto schedules = MustSchedule(test.graph(), 4);
  EXPECT_EQ(schedules[0].order, (Nodes{0, 2, 1, 4, 3, 6, 5, 7}));
  EXPECT_EQ(schedules[0].lanes, (Lanes{1, 1, 0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(Edges(schedules[0]),
            (Strings{"0>1 data", "1>4 prefetch", "2>3 data", "3>6 prefetch",
                     "4>5 data", "6>7 data"}));
}

TEST(ScheduleTest, WithoutPrefetchGatherAndReaderAlternate) {
  TestGraph test = Chain();
  const auto schedules =
      MustSchedule(test.graph(), 4, {.prefetch = 0, .max_units_in_flight = 1});
  EXPECT_EQ(schedules[0].order, test.graph().phases[0].nodes);
  EXPECT_EQ(Edges(schedules[0]),
            (Strings{"0>1 data", "1>2 prefetch", "2>3 data", "3>4 prefetch",
                     "4>5 data", "5>6 prefetch", "6>7 data"}));
}

TEST(ScheduleTest, PrefetchReachesNoFurtherThanThePhase) {
  TestGraph test = Chain();
  const auto schedules =
      MustSchedule(test.graph(), 4, {.prefetch = 9, .max_units_in_flight = 10});
  EXPECT_EQ(schedules[0].order, (Nodes{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(Edges(schedules[0]),
            (Strings{"0>1 data", "2>3 data", "4>5 data", "6>7 data"}));
}

TEST(ScheduleTest, AGatherStaysBehindTheWriterOfItsShard) {
  TestGraph test;
  test.SetPhase("step");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const BufferId shard = test.AddBuffer("shard", 64, Lifetime::kRun);
  const BufferId first = test.AddBuffer("first", 128);
  const BufferId second = test.AddBuffer("second", 128);
  test.SetUnit("a");
  test.Gather(x, first);           // 0
  test.Compute({first}, {x});      // 1
  test.Compute({first}, {shard});  // 2
  test.SetUnit("b");
  test.Gather(shard, second);   // 3
  test.Compute({second}, {x});  // 4
  const auto schedules = MustSchedule(test.graph(), 4);
  EXPECT_EQ(schedules[0].order, (Nodes{0, 1, 2, 3, 4}));
  EXPECT_EQ(Edges(schedules[0]), (Strings{"0>1 data", "2>3 data", "3>4 data"}));
}

TEST(ScheduleTest, SeveralGathersOfAUnitMoveTogether) {
  TestGraph test;
  test.SetPhase("micro");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const auto gather = [&](const std::string& name) {
    const BufferId shard = test.AddBuffer(name + "/s", 64, Lifetime::kRun);
    const BufferId full = test.AddBuffer(name + "/f", 128);
    test.Gather(shard, full);
    return full;
  };
  test.SetUnit("a");
  const BufferId a1 = gather("a1"), a2 = gather("a2");  // 0, 1
  test.Compute({a1}, {x});                              // 2
  test.Compute({a2}, {x});                              // 3
  test.SetUnit("b");
  const BufferId b1 = gather("b1"), b2 = gather("b2");  // 4, 5
  test.Compute({b1}, {x});                              // 6
  test.Compute({b2}, {x});                              // 7
  test.SetUnit("c");
  const BufferId c1 = gather("c1");  // 8
  test.Compute({c1}, {x});           // 9
  const auto schedules = MustSchedule(test.graph(), 4);
  EXPECT_EQ(schedules[0].order, (Nodes{0, 1, 4, 5, 2, 3, 8, 6, 7, 9}));
  EXPECT_EQ(Edges(schedules[0]),
            (Strings{"0>2 data", "1>3 data", "3>8 prefetch", "4>6 data",
                     "5>7 data", "8>9 data"}));
}

TEST(ScheduleTest, TheModelPrefetchesForwardAndBackward) {
  TestGraph test = MakeModel({.layers = 4, .nodes_per_layer = 2});
  const Graph& graph = test.graph();
  const auto schedules = MustSchedule(graph, 4);
  // Unit names of the gathers and of the compute turns, in total order.
  Strings turns;
  for (NodeId id : schedules[0].order) {
    const Node& node = graph.node(id);
    const std::string name = graph.units[node.unit].name;
    if (node.lane == LaneKind::kGather) {
      turns.push_back("gather " + name);
    } else if (node.lane == LaneKind::kCompute) {
      const std::string turn =
          name +
          (node.direction == Direction::kForward ? " forward" : " backward");
      if (turns.back() != turn) turns.push_back(turn);
    }
  }
  EXPECT_EQ(
      turns,
      (Strings{"gather root", "gather layers.0", "root forward",
               "gather layers.1", "layers.0 forward", "gather layers.2",
               "layers.1 forward", "gather layers.3", "layers.2 forward",
               "layers.3 forward", "root backward",
               // The first node reads no parameter: the turn of the root
               // is not over before it.
               "layers.3 backward", "gather layers.2", "layers.3 backward",
               "layers.2 backward", "gather layers.1", "layers.2 backward",
               "layers.1 backward", "gather layers.0", "layers.1 backward",
               "layers.0 backward", "root backward"}));
}

TEST(ScheduleTest, GradientsInFlightAreBounded) {
  TestGraph test = MakeModel({.layers = 4, .nodes_per_layer = 1});
  const Graph& graph = test.graph();
  const auto schedules =
      MustSchedule(graph, 4, {.prefetch = 1, .max_units_in_flight = 2});
  Strings throttles;
  for (const Edge& edge : schedules[0].edges) {
    if (edge.kind != EdgeKind::kThrottle) continue;
    throttles.push_back(graph.units[graph.node(edge.from).unit].name + ">" +
                        graph.units[graph.node(edge.to).unit].name);
    EXPECT_EQ(graph.node(edge.from).op->name, "reduce_scatter");
  }
  EXPECT_EQ(throttles, (Strings{"layers.3>layers.1", "layers.2>layers.0"}));
}

TEST(ScheduleTest, EveryEdgeIsNeeded) {
  for (const int lanes : {2, 3, 4}) {
    TestGraph test = MakeModel({.layers = 3});
    for (const PhaseSchedule& schedule : MustSchedule(test.graph(), lanes)) {
      for (size_t e = 0; e < schedule.edges.size(); ++e) {
        PhaseSchedule without = schedule;
        without.edges.erase(without.edges.begin() + e);
        const LaneClocks clocks = ClocksOf(test.graph(), without);
        const auto position = [&](NodeId id) {
          return static_cast<int32_t>(
              std::find(schedule.order.begin(), schedule.order.end(), id) -
              schedule.order.begin());
        };
        EXPECT_FALSE(clocks.Before(position(schedule.edges[e].from),
                                   position(schedule.edges[e].to)));
        EXPECT_NE(clocks.lane(position(schedule.edges[e].from)),
                  clocks.lane(position(schedule.edges[e].to)));
      }
    }
  }
}

TEST(ScheduleTest, LanesFoldFromTheEnd) {
  TestGraph test = MakeModel({.layers = 2});
  for (const int lanes : {1, 2, 3, 4}) {
    for (const PhaseSchedule& schedule : MustSchedule(test.graph(), lanes)) {
      for (size_t i = 0; i < schedule.order.size(); ++i) {
        const LaneKind kind = test.graph().node(schedule.order[i]).lane;
        EXPECT_EQ(schedule.lanes[i],
                  std::min(static_cast<int>(kind), lanes - 1));
      }
    }
  }
}

TEST(ScheduleTest, DisjointRangesOfABufferAreIndependent) {
  TestGraph test;
  test.SetPhase("p");
  const BufferId b = test.AddBuffer("b", 256, Lifetime::kRun);
  const auto view = [&](int64_t begin, int64_t size) {
    return test.View(b, begin, size);
  };
  test.Add("compute", {}, {view(0, 64)});                          // 0
  test.Add("compute", {}, {view(64, 64)}, {}, LaneKind::kReduce);  // 1
  test.Add("compute", {view(128, 64)}, {}, {}, LaneKind::kCopy);   // 2
  test.Add("compute", {view(32, 64)}, {}, {}, LaneKind::kGather);  // 3
  test.Add("compute", {}, {view(96, 64)});                         // 4
  const auto schedules = MustSchedule(test.graph(), 4);
  // 3 reads what 0 and 1 wrote. 4 overwrites what 1 wrote and 2 reads, and
  // nothing that 3 reads.
  EXPECT_EQ(Edges(schedules[0]),
            (Strings{"0>3 data", "1>3 data", "1>4 data", "2>4 data"}));
}

TEST(ScheduleTest, BadOptionsAreNamed) {
  TestGraph test = Chain();
  for (const int lanes : {0, 5}) {
    const auto status = Schedule(test.graph(), Target(lanes), {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("lanes is"), absl::string_view::npos);
  }
  EXPECT_NE(Schedule(test.graph(), Target(4), {.prefetch = -1})
                .status()
                .message()
                .find("prefetch is -1"),
            absl::string_view::npos);
  EXPECT_NE(Schedule(test.graph(), Target(4),
                     {.prefetch = 2, .max_units_in_flight = 2})
                .status()
                .message()
                .find("at least 3"),
            absl::string_view::npos);
}

TEST(ScheduleTest, AnEmptyPhaseIsFine) {
  TestGraph test;
  test.SetPhase("micro");
  const auto schedules = MustSchedule(test.graph(), 4);
  ASSERT_EQ(schedules.size(), 1u);
  EXPECT_TRUE(schedules[0].order.empty());
}

}  // namespace
}  // namespace shardgraph
