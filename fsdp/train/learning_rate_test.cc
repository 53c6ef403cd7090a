#include "fsdp/train/learning_rate.h"

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

ScheduleSpec Schedule(ScheduleSpec::Kind kind) {
  ScheduleSpec schedule;
  schedule.set_kind(kind);
  schedule.set_warmup_steps(10);
  schedule.set_decay_steps(110);
  schedule.set_final_fraction(0.1);
  return schedule;
}

TEST(LearningRate, WarmsUpToThePeak) {
  for (auto kind :
       {ScheduleSpec::COSINE, ScheduleSpec::LINEAR, ScheduleSpec::CONSTANT}) {
    EXPECT_DOUBLE_EQ(LearningRate(Schedule(kind), 2.0, 0), 0.2);
    EXPECT_DOUBLE_EQ(LearningRate(Schedule(kind), 2.0, 9), 2.0);
    EXPECT_DOUBLE_EQ(LearningRate(Schedule(kind), 2.0, 10), 2.0);
  }
}

TEST(LearningRate, DecaysToTheFinalFraction) {
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleSpec::COSINE), 2.0, 60),
                   0.2 + 1.8 / 2);
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleSpec::LINEAR), 2.0, 35),
                   0.2 + 1.8 * 0.75);
  for (int64_t step : {110, 111, 100000}) {
    EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleSpec::COSINE), 2.0, step),
                     0.2);
    EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleSpec::LINEAR), 2.0, step),
                     0.2);
    EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleSpec::CONSTANT), 2.0, step),
                     2.0);
  }
}

TEST(LearningRate, StaysAtThePeakUntilItFalls) {
  ScheduleSpec schedule = Schedule(ScheduleSpec::WARMUP_STABLE_DECAY);
  schedule.set_stable_until(90);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 4), 1.0);
  for (int64_t step : {9, 10, 50, 90})
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, step), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 95), 0.2 + 1.8 * 0.75);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 110), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 1000), 0.2);
  schedule.set_stable_until(110);  // falls at once
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 110), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 111), 0.2);
}

TEST(LearningRate, FallsWithTheSquareRootOfTheStep) {
  ScheduleSpec schedule = Schedule(ScheduleSpec::INVERSE_SQUARE_ROOT);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 4), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 9), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 39), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 999), 0.2);
  schedule.set_warmup_steps(0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 0), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 2.0, 3), 1.0);
}

TEST(LearningRate, NoWarmUpAndNoDecayAreDefined) {
  ScheduleSpec schedule;
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 1.0, 0), 1.0);
}

TEST(LearningRate, ScalesWithTheWorldWhenAsked) {
  EXPECT_EQ(WorldFactor(OptimizerSpec::NONE, 9), 1);
  EXPECT_EQ(WorldFactor(OptimizerSpec::LINEAR, 9), 9);
  EXPECT_EQ(WorldFactor(OptimizerSpec::SQUARE_ROOT, 9), 3);
}

}  // namespace
}  // namespace shardgraph
