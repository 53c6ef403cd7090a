// Random models under random policies and strategies: every plan is accepted by
// the verifier, none without one of its edges, and runs on any number of ranks
// give the numbers of one.
//
// How many are tried is said by RANDOM_PLANS, RANDOM_BROKEN_PLANS and
// RANDOM_RUNS in the environment; RANDOM_SEED tries one seed alone, in every
// test.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/config/train_config.h"
#include "fsdp/shard/strategy.h"
#include "fsdp/train/training_plan.h"
#include "graph/fusion.h"
#include "graph/graph.h"
#include "graph/passes.h"
#include "graph/step_plan.h"
#include "graph/workspace.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/status_macros.h"
#include "tests/harness/training_run.h"
#include "tests/property/random_training.h"

namespace shardgraph {
namespace {

// The seeds to try: `count` of them from `first` on, or those that the
// environment asks for.
std::vector<uint64_t> Seeds(const char* variable, uint64_t first, int count) {
  if (const char* seed = std::getenv("RANDOM_SEED"))
    return {std::strtoull(seed, nullptr, 10)};
  if (const char* wanted = std::getenv(variable)) count = std::atoi(wanted);
  std::vector<uint64_t> seeds(count);
  for (int i = 0; i < count; ++i) seeds[i] = first + i;
  return seeds;
}

TargetSpec Target(int lanes) {
  TargetSpec target;
  target.set_name("test");
  target.set_lanes(lanes);
  target.set_buffer_alignment(256);
  target.set_window_alignment(4096);
  for (const std::string& name : FusionsByTarget()) target.add_fusions(name);
  return target;
}

absl::StatusOr<std::unique_ptr<TrainingPlan>> MakePlan(
    const RandomTraining& training) {
  TrainConfig config = training.config;
  const auto model = MakeModel(config.model());
  SG_CHECK_OK(model);
  ResolveTrainConfig((*model)->max_positions(), training.world, &config);
  PlanRequest request;
  request.config = &config;
  request.world_size = training.world;
  request.target = Target(training.lanes);
  request.workspace = KernelWorkspace(CpuKernels());
  request.evaluate = training.evaluate;
  request.generate = training.generate;
  request.generate_shape = training.generate_shape;
  return MakeTrainingPlan(request);
}

// Every parameter has its place in one flat parameter, once; padding stays
// below a block for each member and shard.
void ExpectWholeLayout(const TrainingPlan& plan) {
  int64_t numel = 0;
  for (const ShardUnit& unit : plan.layout.units()) {
    const FlatParameter& flat = unit.flat;
    int64_t members = 0, segments = 0, pieces = 0;
    for (const FlatMember& member : flat.members)
      members += member.parameter->numel();
    for (const FlatSegment& segment : flat.segments)
      segments += segment.end - segment.begin;
    for (int shard = 0; shard < plan.layout.shards(); ++shard)
      for (const MemberPiece& piece : flat.PiecesOf(shard))
        pieces += piece.elements;
    EXPECT_EQ(members, flat.numel);
    EXPECT_EQ(segments, flat.numel);
    EXPECT_EQ(pieces, flat.numel);
    EXPECT_EQ(flat.padded_numel, flat.shard_numel * plan.layout.shards());
    EXPECT_LT(flat.padded_numel - flat.numel,
              kBlockAlignment *
                  static_cast<int64_t>(flat.members.size() +
                                       plan.layout.shards() *
                                           PiecesOf(plan.groups, BF16)));
    numel += flat.numel;
  }
  EXPECT_EQ(numel, plan.model->numel());
}

TEST(RandomModelsTest, PlansAreAccepted) {
  for (const uint64_t seed : Seeds("RANDOM_PLANS", 1, 100)) {
    const RandomTraining training = DrawTraining(seed);
    const auto plan = MakePlan(training);
    ASSERT_TRUE(plan.ok()) << plan.status() << "\n" << Describe(training);
    ExpectWholeLayout(**plan);
    const MemoryPlan& memory = (*plan)->plan.memory;
    EXPECT_GE(memory.transient_bytes, memory.transient_lower_bound);
    if (seed % 10 == 0) {
      const auto again = MakePlan(training);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ((*again)->plan.hash, (*plan)->plan.hash);
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << Describe(training);
  }
}

TEST(RandomModelsTest, EveryDataEdgeIsNeeded) {
  for (const uint64_t seed : Seeds("RANDOM_BROKEN_PLANS", 3001, 10)) {
    const RandomTraining training = DrawTraining(seed);
    const auto made = MakePlan(training);
    ASSERT_TRUE(made.ok()) << made.status() << "\n" << Describe(training);
    StepPlan& plan = (*made)->plan;
    for (PhaseSchedule& schedule : plan.schedules) {
      for (size_t e = 0; e < schedule.edges.size(); ++e) {
        const Edge edge = schedule.edges[e];
        if (edge.kind != EdgeKind::kData) continue;
        schedule.edges.erase(schedule.edges.begin() + e);
        ASSERT_FALSE(Verify(plan).ok())
            << PrintNode(plan.graph, edge.from) << "\nbefore "
            << PrintNode(plan.graph, edge.to) << "\n"
            << Describe(training);
        schedule.edges.insert(schedule.edges.begin() + e, edge);
      }
    }
  }
}

double Norm(const std::vector<float>& a) {
  double sum = 0;
  for (const float x : a) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  SG_CHECK_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum);
}

using Tensors = std::map<std::string, std::vector<float>>;

double GlobalNorm(const Tensors& tensors) {
  double sum = 0;
  for (const auto& [name, values] : tensors) sum += std::pow(Norm(values), 2);
  return std::sqrt(sum);
}

// Distances relative to the larger of the tensor's own norm and `share` of all:
// a gradient that is zero in exact arithmetic has noise of that size.
// `rounding`: tensors to whose precision these were rounded, a few times; empty
// for none. Tells of the worst tensor only.
void ExpectNear(const Tensors& run, const Tensors& one, double relative,
                double share, const Tensors& rounding, const char* what) {
  ASSERT_EQ(run.size(), one.size());
  const double global = GlobalNorm(one);
  double worst = 0;
  std::string message;
  for (const auto& [name, values] : one) {
    double tolerance = relative * std::max(Norm(values), share * global);
    if (!rounding.empty()) tolerance += 2e-7 * Norm(rounding.at(name));
    const double distance = Distance(run.at(name), values);
    if (distance <= worst * tolerance) continue;
    worst = distance / tolerance;
    message =
        absl::StrCat(what, " of ", name, ": norm ", Norm(values), " of ",
                     global, ", distance ", distance, ", allowed ", tolerance);
  }
  EXPECT_LE(worst, 1) << message;
}

Tensors UpdatesOf(const TrainingRunResult& run) {
  Tensors updates = run.weights;
  for (auto& [name, update] : updates) {
    const std::vector<float>& before = run.initial.at(name);
    for (size_t i = 0; i < update.size(); ++i) update[i] -= before[i];
  }
  return updates;
}

// The same training on one rank, in one micro-batch, nothing computed twice. In
// BF16 with the same units: which parameters lie side by side decides whether
// one product serves them, and so where their sums round.
RandomTraining OnOneRank(RandomTraining training) {
  training.world = 1;
  training.lanes = 1;
  ShardSpec shard;
  if (training.config.precision().compute() == BF16) {
    const ShardSpec& given = training.config.shard();
    shard.set_wrap_policy(given.wrap_policy());
    shard.set_min_num_params(given.min_num_params());
    *shard.mutable_wrap_classes() = given.wrap_classes();
    shard.set_wrap_pattern(given.wrap_pattern());
  }
  *training.config.mutable_shard() = shard;
  training.config.mutable_data()->set_micro_batch_size(
      training.config.data().batch_size());
  return training;
}

absl::StatusOr<TrainingRunResult> Run(const RandomTraining& training) {
  TrainingRunOptions options;
  options.world_size = training.world;
  options.target = Target(training.lanes);
  return RunTraining(training.config, options);
}

// Three steps of SGD. Only the first, which starts from the same bits, where a
// small difference may become a large one: in BF16, and with ReLU, whose
// gradient jumps.
void ExpectAgreesWithOneRank(RandomTraining training) {
  const bool fp32 = training.config.precision().compute() == FP32 &&
                    training.config.precision().reduce() == FP32;
  OptimizerSpec* optimizer = training.config.mutable_optimizer();
  optimizer->set_kind(OptimizerSpec::SGD);
  optimizer->set_learning_rate(0.05);
  const bool smooth =
      !absl::StrContains(training.config.model().ShortDebugString(), "relu");
  training.config.mutable_run()->set_steps(fp32 && smooth ? 3 : 1);

  const double relative = fp32 ? 1e-4 : 5e-3;
  // Ranks' contributions are rounded to BF16 each, and may all but cancel.
  const double share =
      training.config.precision().reduce() == BF16 ? 0.2 : 1e-2;

  const auto one = Run(OnOneRank(training));
  ASSERT_TRUE(one.ok()) << one.status() << "\n" << Describe(training);
  const auto run = Run(training);
  ASSERT_TRUE(run.ok()) << run.status() << "\n" << Describe(training);
  EXPECT_EQ(run->initial, one->initial);
  ASSERT_EQ(run->losses.size(), one->losses.size());
  for (size_t i = 0; i < one->losses.size(); ++i) {
    EXPECT_NEAR(run->losses[i], one->losses[i], 0.1 * relative) << "step " << i;
    EXPECT_NEAR(run->gradient_norms[i], one->gradient_norms[i],
                relative * one->gradient_norms[i])
        << "step " << i;
  }
  ExpectNear(run->gradients, one->gradients, relative, share, {}, "gradient");
  ExpectNear(UpdatesOf(*run), UpdatesOf(*one), relative, share, one->initial,
             "update");
  ASSERT_FALSE(::testing::Test::HasFailure()) << Describe(training);
}

// Fused nodes do what they replace, bit for bit.
void ExpectFusionChangesNothing(RandomTraining training) {
  training.config.mutable_optimizer()->set_kind(OptimizerSpec::SGD);
  training.config.mutable_optimizer()->set_learning_rate(0.05);
  training.config.mutable_run()->set_steps(2);
  const auto fused = Run(training);
  ASSERT_TRUE(fused.ok()) << fused.status() << "\n" << Describe(training);
  training.config.mutable_run()->add_unfused(std::string(kAllFusions));
  const auto composed = Run(training);
  ASSERT_TRUE(composed.ok()) << composed.status();
  EXPECT_EQ(fused->losses, composed->losses);
  EXPECT_EQ(fused->gradient_norms, composed->gradient_norms);
  EXPECT_EQ(fused->weights, composed->weights);
  ASSERT_FALSE(::testing::Test::HasFailure()) << Describe(training);
}

TEST(RandomModelsTest, FusionChangesNothing) {
  for (const uint64_t seed : Seeds("RANDOM_FUSIONS", 7001, 8)) {
    ExpectFusionChangesNothing(DrawTraining(seed));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(RandomModelsTest, RunsAgreeWithOneRank) {
  for (const uint64_t seed : Seeds("RANDOM_RUNS", 5001, 6)) {
    ExpectAgreesWithOneRank(DrawTraining(seed));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace shardgraph
