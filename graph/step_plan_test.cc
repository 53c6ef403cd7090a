#include "graph/step_plan.h"

#include <string>

#include "graph/test_graph.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TestGraph TwoUnits() {
  TestGraph test;
  test.SetPhase("eval");
  const BufferId x =
      test.AddBuffer("x", 64, Lifetime::kRun, MemoryKind::kInput);
  const BufferId a = test.AddBuffer("a/shard", 64, Lifetime::kRun,
                                    MemoryKind::kComputeParameter);
  const BufferId b = test.AddBuffer("b/shard", 128, Lifetime::kRun,
                                    MemoryKind::kComputeParameter);
  const BufferId a_full = test.AddBuffer("a/gathered", 128, Lifetime::kPhase,
                                         MemoryKind::kGatheredParameter);
  const BufferId b_full = test.AddBuffer("b/gathered", 256, Lifetime::kPhase,
                                         MemoryKind::kGatheredParameter);
  const BufferId y = test.AddBuffer("y", 64);
  test.SetUnit("a");
  test.Gather(a, a_full);
  test.Compute({x, a_full}, {y});
  test.SetUnit("b");
  test.Gather(b, b_full);
  test.Compute({y, b_full}, {x});
  return test;
}

TEST(StepPlanTest, GoldenText) {
  EXPECT_EQ(
      PrintPlan(MakePlan(TwoUnits().graph(), 2)),
      R"(plan target=test lanes=2 arena=2816 persistent=1024 transient=1792
group world size=2 stride=1
buffer 0 x bytes=256 align=256 run input
buffer 1 a/shard bytes=256 align=256 run compute_parameter
buffer 2 b/shard bytes=512 align=256 run compute_parameter
buffer 3 a/gathered bytes=512 align=256 phase gathered_parameter
buffer 4 b/gathered bytes=1024 align=256 phase gathered_parameter
buffer 5 y bytes=256 align=256 phase activation
phase eval
  %0 : F32[64] in 1+0
  %1 = all_gather(%0) group=world size=2 : F32[128] @a forward in 3+0
  %2 : F32[64] in 0+0
  %3 : F32[128] in 3+0
  %4 = compute(%2, %3) : F32[64] @a forward in 5+0
  %5 : F32[128] in 2+0
  %6 = all_gather(%5) group=world size=2 : F32[256] @b forward in 4+0
  %7 : F32[64] in 5+0
  %8 : F32[256] in 4+0
  %9 = compute(%7, %8) : F32[64] @b forward in 0+0
place 0 x at 0
place 1 a/shard at 256
place 2 b/shard at 512
place 3 a/gathered at 2048
place 4 b/gathered at 1024
place 5 y at 2560
schedule eval
  0 lane 1: %1 = all_gather(%0) group=world size=2 : F32[128] @a forward
  1 lane 1: %6 = all_gather(%5) group=world size=2 : F32[256] @b forward
  2 lane 0: %4 = compute(%2, %3) : F32[64] @a forward after 0 (data)
  3 lane 0: %9 = compute(%7, %8) : F32[64] @b forward after 1 (data)
)");
}

TEST(StepPlanTest, TheHashSeesOrderEdgesAndOffsets) {
  const StepPlan plan = MakePlan(TwoUnits().graph(), 2);
  EXPECT_EQ(plan.hash, HashPlan(plan));
  StepPlan other = plan;
  other.memory.offsets[5] += 256;
  EXPECT_NE(HashPlan(other), plan.hash);
  other = plan;
  std::swap(other.schedules[0].order[0], other.schedules[0].order[1]);
  EXPECT_NE(HashPlan(other), plan.hash);
  other = plan;
  other.schedules[0].edges.pop_back();
  EXPECT_NE(HashPlan(other), plan.hash);
}

TEST(StepPlanTest, VolumesByFormula) {
  for (const int32_t world : {1, 2, 4, 8}) {
    const TestModel model = {.layers = 3, .parameters = 8192, .world = world};
    const StepPlan plan = MakePlan(MakeModel(model).graph(), 4);
    // Each unit is gathered once in forward; all layers but the last again for
    // backward; each gradient is reduced once.
    const int64_t unit = model.parameters * 4 / world * (world - 1);
    const CommunicationVolume volume = VolumeOf(plan, 0);
    EXPECT_EQ(volume.all_gather_bytes, unit * (1 + 3 + 2));
    EXPECT_EQ(volume.reduce_scatter_bytes, unit * (1 + 3));
    EXPECT_EQ(volume.all_reduce_bytes, 0);
    EXPECT_EQ(VolumeOf(plan, 1).all_gather_bytes, 0);
  }
}

TEST(StepPlanTest, VolumesOfReductionsAndExchanges) {
  TestGraph test(4);
  test.SetPhase("p");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const BufferId y = test.AddBuffer("y", 64, Lifetime::kRun);
  const Attributes attributes =
      Attributes().SetString("group", "world").SetInt("size", 4);
  test.Add("all_reduce", {test.View(x)}, {test.View(x)}, attributes,
           LaneKind::kReduce);
  test.Add("all_to_all", {test.View(x)}, {test.View(y)}, attributes,
           LaneKind::kReduce);
  const CommunicationVolume volume = VolumeOf(MakePlan(test.graph(), 4), 0);
  EXPECT_EQ(volume.all_reduce_bytes, 2 * 256 * 3 / 4);
  EXPECT_EQ(volume.all_to_all_bytes, 256 * 3 / 4);
}

TEST(StepPlanTest, FlopsByDirection) {
  TestGraph test;
  test.SetPhase("p");
  const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
  const auto add = [&](Direction direction, double flops) {
    test.SetDirection(direction);
    test.Add("compute", {test.View(x)}, {test.View(x)},
             Attributes().SetDouble("flops", flops));
  };
  add(Direction::kForward, 1);
  add(Direction::kForward, 2);
  add(Direction::kBackward, 4);
  add(Direction::kUpdate, 8);
  EXPECT_EQ(MatmulFlopsOf(MakePlan(test.graph(), 1), 0),
            (std::array<double, 4>{3, 0, 4, 8}));
}

}  // namespace
}  // namespace shardgraph
