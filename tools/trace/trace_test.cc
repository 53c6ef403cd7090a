// Traces: what the executor records, the file of all ranks, shares of time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/files/json.h"
#include "graph/builder.h"
#include "graph/executor.h"
#include "graph/passes.h"
#include "gtest/gtest.h"
#include "kernels/cpu/backend.h"
#include "kernels/status_macros.h"
#include "kernels/testing/allocations.h"
#include "nlohmann/json.hpp"
#include "tools/bench/null_device.h"
#include "tools/trace/chrome_trace.h"
#include "tools/trace/measured_cost.h"
#include "tools/trace/rank_trace.h"
#include "tools/trace/step_times.h"

namespace shardgraph {
namespace {

using nlohmann::json;

constexpr int kPairs = 3;
constexpr int kSteps = 4;  // 1 eager, 2 recorded, the rest replayed

// all_reduce and relu in turn, each waiting for the one before on another lane;
// and a phase of one node.
StepPlan Chain(int lanes) {
  StepPlan plan;
  plan.num_lanes = lanes;
  plan.graph.groups = {{"world", 2, 1}};
  plan.graph.units = {{"unit \"0\""}};
  GraphBuilder b(&plan.graph);
  b.SetPhase("micro");
  ValueId x = b.Emit1("relu", {b.Input("x", TensorType(DType::kF32, {64}))});
  for (int i = 0; i < kPairs; ++i) {
    x = b.Emit1(
        "all_reduce", {x},
        Attributes().SetString(kGroupAttribute, "world").SetInt("size", 2));
    x = b.Emit1("relu", {x});
  }
  b.SetPhase("update");
  b.Emit1("relu", {b.Input("z", TensorType(DType::kF32, {8}))});
  for (Node& node : plan.graph.nodes) node.unit = 0;
  TargetSpec target;
  target.set_lanes(lanes);
  target.set_buffer_alignment(256);
  target.set_window_alignment(4096);
  plan.schedules = *Schedule(plan.graph, target, {});
  plan.memory = *PlanMemory(plan.graph, plan.schedules);
  return plan;
}

// Steps of two micro-batches and an update.
void RunSteps(const StepPlan& plan, TraceRecorder* recorder,
              const std::vector<int>& traced,
              std::vector<int64_t>* allocations) {
  const auto communicators = MakeNullCommunicators(2);
  const auto backend = *MakeCpuBackend({.kernels = &NullKernels()});
  ExecutorOptions options;
  options.backend = backend.get();
  options.communicators = communicators.get();
  options.trace = recorder;
  const auto executor = *Executor::Create(plan, options);
  for (int step = 1; step <= kSteps; ++step) {
    for (int which : traced) {
      if (which == step) recorder->Start(step);
    }
    const int64_t before = NumAllocations();
    for (const PhaseId phase : {0, 0, 1}) SG_CHECK_OK(executor->Run(phase));
    if (recorder->active()) recorder->Stop();
    allocations->push_back(NumAllocations() - before);
  }
}

class ChromeTraceTest : public testing::TestWithParam<int> {
 protected:
  ChromeTraceTest() : plan_(Chain(GetParam())) {}

  TraceRecorder Recorder(int64_t steps) const {
    return TraceRecorder(GetParam(), TraceCapacity(plan_, 2, steps));
  }

  const StepPlan plan_;
  std::vector<int64_t> allocations_;
};

TEST_P(ChromeTraceTest, ShowsEveryNodeOfEveryRank) {
  std::vector<RankTrace> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    TraceRecorder recorder = Recorder(2);
    RunSteps(plan_, &recorder, {3, 4}, &allocations_);
    const RankTrace trace = TakeTrace(recorder, rank);
    const auto again = UnpackTrace(PackTrace(trace));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->rank, rank);
    EXPECT_EQ(again->lanes, trace.lanes);
    EXPECT_EQ(again->host, trace.host);
    ranks.push_back(*again);
  }
  const json trace = ParseJson(ChromeTrace(plan_, ranks));

  std::map<std::pair<int, int>, std::string> names;
  std::map<std::pair<int, int>, double> ends;  // of the last event of a thread
  std::map<std::array<int, 3>, int> runs;      // by rank, step, node
  std::map<std::pair<int, int>, std::pair<double, double>> steps;
  std::map<int, std::vector<json>> arrows;
  double first = 1e30;
  for (const json& event : trace.at("traceEvents")) {
    const int rank = event.at("pid"), thread = event.at("tid");
    const std::string kind = event.at("ph");
    if (kind == "M") {
      if (event.at("name") == "thread_name")
        names[{rank, thread}] = event.at("args").at("name");
      continue;
    }
    const double time = event.at("ts");
    EXPECT_GE(time, 0);
    first = std::min(first, time);
    if (kind != "X") {
      arrows[event.at("id")].push_back(event);
      continue;
    }
    const double seconds = event.at("dur");
    const json& arguments = event.at("args");
    const int step = arguments.at("step");
    EXPECT_GE(seconds, 0);
    if (event.at("cat") == "host") {
      if (event.at("name") == absl::StrCat("step ", step))
        steps[{rank, step}] = {time, time + seconds};
      continue;
    }
    // One node after the other.
    EXPECT_GE(time, (ends[{rank, thread}]));
    ends[{rank, thread}] = time + seconds;
    const NodeId id = arguments.at("node");
    const Node& node = plan_.graph.nodes.at(id);
    EXPECT_EQ(event.at("name"), std::string(node.op->name));
    EXPECT_EQ(event.at("cat"), plan_.graph.phases[node.phase].name);
    EXPECT_EQ(arguments.at("unit"), "unit \"0\"");
    EXPECT_EQ(arguments.at("direction"), "forward");
    EXPECT_GT(arguments.at("bytes"), 0);
    EXPECT_TRUE(arguments.contains("flops") && arguments.contains("scope"));
    ++runs[{rank, step, id}];
  }
  EXPECT_NEAR(first, 0, 1e-9);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ((names[{rank, GetParam()}]), "host");
    EXPECT_EQ((names[{rank, 0}]), GetParam() == 1 ? "all" : "compute");
    for (int step = 3; step <= 4; ++step) {
      EXPECT_TRUE(steps.contains({rank, step}));
      for (NodeId id = 0; id < static_cast<NodeId>(plan_.graph.nodes.size());
           ++id) {
        EXPECT_EQ((runs[{rank, step, id}]),
                  plan_.graph.nodes[id].phase == 0 ? 2 : 1);
      }
    }
  }
  EXPECT_EQ(runs.size(), 2 * 2 * plan_.graph.nodes.size());
  // Each arrow has two ends in the right order; each edge one for each run.
  EXPECT_EQ(arrows.size(), plan_.schedules[0].edges.size() * 2 * 2 * 2);
  for (const auto& [id, ends_of] : arrows) {
    ASSERT_EQ(ends_of.size(), 2u);
    EXPECT_EQ(ends_of[0].at("ph"), "s");
    EXPECT_EQ(ends_of[1].at("ph"), "f");
    EXPECT_LE(ends_of[0].at("ts"), ends_of[1].at("ts"));
  }
}

TEST_P(ChromeTraceTest, AllocatesNothingInASettledStep) {
  TraceRecorder recorder = Recorder(1);
  RunSteps(plan_, &recorder, {3, 4}, &allocations_);
  EXPECT_EQ(allocations_[2], 0);
  EXPECT_EQ(allocations_[3], 0);
}

TEST_P(ChromeTraceTest, RecordsOnlyWhatItIsToldTo) {
  TraceRecorder recorder = Recorder(4);
  RunSteps(plan_, &recorder, {}, &allocations_);
  EXPECT_TRUE(recorder.host().empty());
  for (int lane = 0; lane < GetParam(); ++lane)
    EXPECT_TRUE(recorder.lane(lane).empty());
}

INSTANTIATE_TEST_SUITE_P(Lanes, ChromeTraceTest, testing::Values(1, 2),
                         testing::PrintToStringParamName());

TEST(TraceRecorderTest, AFullRingKeepsTheNewest) {
  TraceRecorder recorder(1, 3);
  recorder.Start(7);
  for (int32_t node = 0; node < 5; ++node)
    recorder.Add(0, node, {10 * node, 4 * node}, {10 * node + 1, 4 * node + 1});
  const std::vector<TraceEvent> expected = {
      {20, 21, 7, 2, 3}, {30, 31, 7, 3, 3}, {40, 41, 7, 4, 3}};
  EXPECT_EQ(recorder.lane(0), expected);
}

TEST(RankTraceTest, RefusesOtherBytes) {
  RankTrace trace;
  trace.lanes = {{{1, 2, 3, 4}}, {}};
  const std::string bytes = PackTrace(trace);
  EXPECT_TRUE(UnpackTrace(bytes).ok());
  EXPECT_FALSE(UnpackTrace(bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_FALSE(UnpackTrace(bytes + "x").ok());
  EXPECT_FALSE(UnpackTrace("").ok());
  EXPECT_FALSE(UnpackTrace(std::string(64, '\xff')).ok());
}

// A step of 100 ns: relu, all_reduce on the other lane, relu, before which the
// thread ran for some.
RankTrace Step(int rank, std::array<int64_t, 6> times, int64_t ran_before) {
  RankTrace trace;
  trace.rank = rank;
  trace.lanes = {
      {{times[0], times[1], 1, 0}, {times[4], times[5], 1, 2, ran_before}},
      {{times[2], times[3], 1, 1}}};
  trace.host = {{5, 9, 1, 0},
                {9, 95, 1, TraceEvent::kSynchronize},
                {0, 100, 1, TraceEvent::kStep}};
  return trace;
}

TEST(StepTimesTest, SaysWhatTimeGoesTo) {
  const StepPlan plan = Chain(2);
  ASSERT_EQ(plan.graph.nodes[1].op->name, "all_reduce");
  const std::vector<RankTrace> ranks = {Step(0, {10, 30, 33, 60, 65, 80}, 2),
                                        Step(1, {10, 40, 45, 61, 66, 85}, 9)};
  const StepTimes times = StepTimesOf(plan, ranks);
  constexpr double kNs = 1e-9, kTolerance = 1e-15;
  EXPECT_NEAR(times.seconds, 100 * kNs, kTolerance);
  ASSERT_EQ(times.lanes.size(), 2u);
  // Waits: 30 to 60 and 40 to 61, for the all-reduce.
  const LaneTimes& compute = times.lanes[0];
  EXPECT_EQ(compute.families.size(), 1u);
  EXPECT_NEAR(compute.families.at("pointwise"), (35 + 49) / 2.0 * kNs,
              kTolerance);
  EXPECT_NEAR(compute.waits, (30 + 21) / 2.0 * kNs, kTolerance);
  EXPECT_NEAR(compute.peers, 0, kTolerance);
  // Of 5 ns from the all-reduce's end rank 0's thread ran 2.
  EXPECT_NEAR(compute.queued, 3 / 2.0 * kNs, kTolerance);
  EXPECT_NEAR(compute.engine, (32 + 30) / 2.0 * kNs, kTolerance);
  // Waits from when the phase is enqueued and until the last node of it has
  // run. Rank 0 comes to the all-reduce 12 ns before rank 1.
  const LaneTimes& communication = times.lanes[1];
  EXPECT_NEAR(communication.waits, (25 + 20 + 35 + 24) / 2.0 * kNs, kTolerance);
  EXPECT_NEAR(communication.peers, 12 / 2.0 * kNs, kTolerance);
  EXPECT_NEAR(communication.families.at("collective"), (15 + 16) / 2.0 * kNs,
              kTolerance);
  EXPECT_EQ(communication.queued, 0);
  EXPECT_NEAR(communication.engine, (28 + 25) / 2.0 * kNs, kTolerance);

  const std::vector<NodeTimes> nodes = NodeTimesOf(plan, ranks);
  EXPECT_NEAR(nodes[1].seconds, (27 + 16) / 2.0 * kNs, kTolerance);
  EXPECT_NEAR(nodes[1].runs, 1, kTolerance);
  EXPECT_EQ(nodes.back().runs, 0);
}

// What was really recorded adds up, whatever the number of lanes.
TEST_P(ChromeTraceTest, TimesAddUp) {
  TraceRecorder recorder = Recorder(2);
  RunSteps(plan_, &recorder, {1, 4}, &allocations_);
  const std::vector<RankTrace> ranks = {TakeTrace(recorder, 0)};
  const StepTimes times = StepTimesOf(plan_, ranks);
  EXPECT_EQ(times.lanes.size(), static_cast<size_t>(GetParam()));
  for (const LaneTimes& lane : times.lanes) {
    double sum = lane.peers + lane.waits + lane.queued + lane.engine;
    for (const auto& [family, seconds] : lane.families) sum += seconds;
    EXPECT_NEAR(sum, times.seconds, 1e-9);
    EXPECT_GE(lane.waits, 0);
    EXPECT_GE(lane.queued, 0);
    EXPECT_GT(lane.engine, 0);
  }
}

// Rank 1 comes 10 us late to each collective, which takes 5 us from then on.
TEST(MeasuredCost, NodesTakeWhatThoseAlikeTook) {
  const StepPlan plan = Chain(2);
  const std::vector<NodeId>& order = plan.schedules[0].order;
  std::vector<RankTrace> ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    ranks[rank].lanes.resize(2);
    for (int run = 0; run < 3; ++run) {
      for (const NodeId node : order) {
        const bool collective = plan.graph.nodes[node].op->name == "all_reduce";
        const int64_t begin =
            1000000 * run + 100000 * node + (collective ? 10000 * rank : 0);
        const int64_t end = 1000000 * run + 100000 * node +
                            (collective ? 15000 : 1000 * (run + 1));
        ranks[rank].lanes[collective].push_back({begin, end, run, node});
      }
    }
  }
  TargetSpec target;
  target.set_memory_bandwidth(1e9);
  MeasuredCost cost(target);
  cost.Add(plan, ranks);
  for (const NodeId node : order) {
    const bool collective = plan.graph.nodes[node].op->name == "all_reduce";
    EXPECT_NEAR(cost.Seconds(plan.graph, plan.graph.nodes[node]),
                collective ? 5e-6 : 2e-6, 1e-12);
  }
  // Of another shape: as the target's model says, times what the family took.
  const Node& update = plan.graph.nodes[plan.schedules[1].order[0]];
  EXPECT_NEAR(cost.Seconds(plan.graph, update), 2e-6 * 8 / 64, 1e-12);
  cost.set_factor(2);
  EXPECT_NEAR(cost.Seconds(plan.graph, update), 4e-6 * 8 / 64, 1e-12);
}

}  // namespace
}  // namespace shardgraph
