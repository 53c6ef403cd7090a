// The standing mutations, with every strategy. A training that is broken in one
// place gives other numbers than whole, by more than parity tests allow: each
// sum over ranks dropped, each gather that brings nothing, each piece that is
// another's, each accumulation skipped, a gradient scaled by 0.9, one dropout
// mask for all sequences. What may go unseen in numbers, Verify refuses: each
// edge omitted, each pad read.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/config/train_config.h"
#include "fsdp/shard/flat_parameter.h"
#include "fsdp/train/training_plan.h"
#include "graph/graph.h"
#include "graph/passes.h"
#include "graph/workspace.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/kernel.h"
#include "kernels/status_macros.h"
#include "tests/harness/training_run.h"
#include "tests/parity/parity.h"

namespace shardgraph {
namespace {

struct Way {
  const char* name;
  int world;
  std::vector<std::string> overrides;
};

const std::vector<Way>& Ways() {
  static const auto& ways = *new std::vector<Way>{
      {"FullShard", 2, {"shard.strategy=FULL_SHARD"}},
      {"ShardGradOp", 2, {"shard.strategy=SHARD_GRAD_OP"}},
      {"Zero1", 2, {"shard.strategy=ZERO1"}},
      {"Zero1Once", 2, {"shard.strategy=ZERO1", "shard.reduce_once=true"}},
      {"NoShard", 2, {"shard.strategy=NO_SHARD"}},
      {"Hybrid", 4, {"shard.strategy=HYBRID", "shard.shard_group_size=2"}},
      {"Reshard",
       4,
       {"shard.strategy=FULL_SHARD", "shard.reshard_group_size=2"}},
      {"HybridInBf16",
       4,
       {"shard.strategy=HYBRID", "shard.shard_group_size=2",
        "precision.reduce=BF16"}},
  };
  return ways;
}

// Two micro-batches; padding in every unit; clipped, so that norms matter.
TrainConfig ConfigOf(const Way& way) {
  std::vector<std::string> overrides = way.overrides;
  overrides.insert(overrides.end(),
                   {"data.batch_size=8", "data.sequence_length=8",
                    "run.steps=2", "optimizer.max_gradient_norm=0.01",
                    "optimizer.learning_rate=10", "run.unfused=all"});
  return ParityConfig(
      "gpt2 { vocab_size: 67 n_positions: 8 n_embd: 18 n_layer: 1 n_head: 3 "
      "resid_pdrop: 0.1 embd_pdrop: 0.1 attn_pdrop: 0.1 "
      "initializer_range: 0.15 }",
      4 / way.world, overrides);
}

// What a kernel is bound to: the place of a mutation. Units differ in size.
using Place = std::tuple<std::string, int64_t, DType>;

// Kernels are found by plain functions: what they are to break stands here.
struct Sabotage {
  std::mutex mutex;
  std::set<Place> seen;
  Place broken;

  static Sabotage& Get() {
    static auto& sabotage = *new Sabotage;
    return sabotage;
  }
  bool Breaks(const KernelContext& context) {
    const Place place(context.op->name, context.operands[0].type.num_elements(),
                      context.operands[0].type.dtype);
    const std::lock_guard<std::mutex> lock(mutex);
    seen.insert(place);
    return place == broken;
  }
};

using Prepared = absl::StatusOr<std::unique_ptr<PreparedKernel>>;

// The kernel as it should be.
Prepared PrepareWhole(const KernelContext& context) {
  std::vector<TensorType> operands, results;
  for (const Tensor& operand : context.operands)
    operands.push_back(operand.type);
  for (const Tensor& result : context.results) results.push_back(result.type);
  SG_ASSIGN_OR_RETURN(const KernelDef* kernel,
                      CpuKernels().Find(context.op->name, *context.attributes,
                                        operands, results));
  SG_CHECK(kernel->workspace == nullptr) << std::string(context.op->name);
  return kernel->prepare(context);
}

// This rank's own part in place of the sum over ranks.
Prepared DropReduction(const KernelContext& context) {
  if (!Sabotage::Get().Breaks(context)) return PrepareWhole(context);
  const Tensor& result = context.results[0];
  const int64_t bytes = result.type.num_elements() * SizeOf(result.type.dtype);
  const int64_t piece = context.op->name == "reduce_scatter" ? context.rank : 0;
  return MakeKernel([from = context.operands[0].as<char>() + piece * bytes,
                     to = result.as<char>(), bytes](Lane&) {
    if (from != to) std::memmove(to, from, bytes);
  });
}

// This rank's own shard in place of everybody's.
Prepared DropGather(const KernelContext& context) {
  if (!Sabotage::Get().Breaks(context)) return PrepareWhole(context);
  const Tensor& shard = context.operands[0];
  const int64_t bytes = shard.type.num_elements() * SizeOf(shard.type.dtype);
  return MakeKernel([from = shard.as<char>(),
                     to = context.results[0].as<char>(), bytes,
                     size = context.group_size](Lane&) {
    for (int64_t piece = 0; piece < size; ++piece)
      std::memmove(to + piece * bytes, from, bytes);
  });
}

// Operand `index` is zeros: the micro-batch's number, the sequences'.
template <int index>
Prepared ZeroOperand(const KernelContext& context) {
  if (!Sabotage::Get().Breaks(context)) return PrepareWhole(context);
  static int64_t zeros[64] = {};
  std::vector<Tensor> operands(context.operands.begin(),
                               context.operands.end());
  SG_CHECK(operands[index].type.num_elements() <= 64);
  operands[index].data = zeros;
  KernelContext broken = context;
  broken.operands = operands;
  return PrepareWhole(broken);
}

// What the first rank is to keep, on every rank.
Prepared TakeFirst(const KernelContext& context) {
  KernelContext broken = context;
  if (Sabotage::Get().Breaks(context)) broken.rank = 0;
  return PrepareWhole(broken);
}

Prepared ScaleResult(const KernelContext& context) {
  if (!Sabotage::Get().Breaks(context)) return PrepareWhole(context);
  const Tensor& result = context.results[0];
  SG_CHECK(result.type.contiguous() && result.type.dtype == DType::kF32);
  SG_ASSIGN_OR_RETURN(std::unique_ptr<PreparedKernel> whole,
                      PrepareWhole(context));
  return MakeKernel([whole = std::shared_ptr(std::move(whole)),
                     data = result.as<float>(),
                     n = result.type.num_elements()](Lane& lane) {
    const absl::Status status = whole->Launch(lane);
    for (int64_t i = 0; i < n; ++i) data[i] *= 0.9f;
    return status;
  });
}

constexpr KernelDef kMutations[] = {
    {.op = "reduce_scatter", .prepare = DropReduction},
    {.op = "all_reduce", .prepare = DropReduction},
    {.op = "all_to_all", .prepare = DropReduction},
    {.op = "all_gather", .prepare = DropGather},
    {.op = "take_shard", .prepare = TakeFirst},
    {.op = "accumulate", .prepare = ZeroOperand<2>},
    {.op = "dropout", .prepare = ZeroOperand<1>},
    {.op = "gelu_gradient", .prepare = ScaleResult},
};

class StrategyMutations : public ::testing::TestWithParam<Way> {
 protected:
  static absl::StatusOr<TrainingRunResult> Train(const Way& way,
                                                 const Place& broken) {
    static const auto& table = *new KernelTable([] {
      auto lists = CpuKernelLists();
      lists.push_back(kMutations);
      return lists;
    }());
    Sabotage::Get().seen.clear();
    Sabotage::Get().broken = broken;
    TrainingRunOptions options;
    options.world_size = way.world;
    options.kernels = &table;
    return RunTraining(ConfigOf(way), options);
  }

  static std::unique_ptr<TrainingPlan> Plan(const Way& way) {
    TrainConfig config = ConfigOf(way);
    ResolveTrainConfig(/*max_positions=*/8, way.world, &config);
    PlanRequest request;
    request.config = &config;
    request.world_size = way.world;
    request.target.set_name("test");
    request.target.set_lanes(4);
    request.target.set_buffer_alignment(256);
    request.target.set_window_alignment(4096);
    request.workspace = KernelWorkspace(CpuKernels());
    auto plan = MakeTrainingPlan(request);
    SG_CHECK_OK(plan);
    return *std::move(plan);
  }
};

// As ExpectSame has it.
double WorstDifference(const TrainingRunResult& run,
                       const TrainingRunResult& whole, double loss,
                       double update) {
  double worst = 0;
  for (size_t i = 0; i < whole.losses.size(); ++i)
    worst = std::max(worst, std::abs(run.losses[i] - whole.losses[i]) / loss);
  for (const auto& [name, weights] : whole.weights) {
    std::vector<float> of_whole = weights, of_run = run.weights.at(name);
    for (size_t i = 0; i < weights.size(); ++i) {
      of_whole[i] -= whole.initial.at(name)[i];
      of_run[i] -= whole.initial.at(name)[i];
    }
    worst = std::max(worst, RelativeDifference(of_run, of_whole) / update);
  }
  return worst;
}

TEST_P(StrategyMutations, GiveOtherNumbers) {
  const auto whole = Train(GetParam(), {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const std::set<Place> places = Sabotage::Get().seen;
  const auto one = Train({"", 1, {}}, {});
  ASSERT_TRUE(one.ok()) << one.status();
  const bool rounds = ConfigOf(GetParam()).precision().reduce() == BF16;
  const double update = rounds ? std::exp2(-7) : 1e-4;
  EXPECT_LE(WorstDifference(*whole, *one, rounds ? 1e-3 : 1e-5, update), 1);
  std::set<std::string> ops;
  for (const Place& place : places) {
    const auto& [op, elements, dtype] = place;
    ops.insert(op);
    const auto run = Train(GetParam(), place);
    if (!run.ok()) {  // replicas are compared by themselves
      EXPECT_NE(run.status().message().find("replicas differ"),
                absl::string_view::npos)
          << run.status();
      continue;
    }
    EXPECT_GT(WorstDifference(*run, *whole, 1e-5, update), 1)
        << op << " of " << DTypeName(dtype) << "[" << elements << "]";
  }
  for (const char* op :
       {"all_reduce", "accumulate", "dropout", "gelu_gradient"})
    EXPECT_EQ(ops.count(op), 1u) << op;
  EXPECT_EQ(ops.count("take_shard"),
            GetParam().name == std::string("Reshard") ? 1u : 0u);
  EXPECT_EQ(ops.count("reduce_scatter") + ops.count("all_to_all"),
            GetParam().name == std::string("NoShard") ? 0u : 1u);
}

TEST_P(StrategyMutations, OmittedEdgesAreRefused) {
  const std::unique_ptr<TrainingPlan> training = Plan(GetParam());
  StepPlan& plan = training->plan;
  ASSERT_TRUE(Verify(plan).ok());
  int tried = 0;
  for (PhaseSchedule& schedule : plan.schedules) {
    for (size_t e = 0; e < schedule.edges.size(); ++e) {
      const Edge edge = schedule.edges[e];
      if (edge.kind != EdgeKind::kData) continue;
      schedule.edges.erase(schedule.edges.begin() + e);
      EXPECT_FALSE(Verify(plan).ok())
          << PrintNode(plan.graph, edge.from) << " -> "
          << PrintNode(plan.graph, edge.to);
      schedule.edges.insert(schedule.edges.begin() + e, edge);
      ++tried;
    }
  }
  EXPECT_GT(tried, 2);
}

// By what takes the norm, and by the update.
TEST_P(StrategyMutations, PadsThatAreReadAreRefused) {
  const std::unique_ptr<TrainingPlan> training = Plan(GetParam());
  StepPlan& plan = training->plan;
  int tried = 0;
  for (Node& node : plan.graph.nodes) {
    if (!node.attributes.Has("segments")) continue;
    const Attributes original = node.attributes;
    const std::vector<int64_t> segments = original.Ints("segments");
    for (size_t i = 0; i < segments.size(); i += 3) {
      const bool pad = i + 3 < segments.size()
                           ? segments[i + 1] < segments[i + 3]
                           : segments[i + 1] % kBlockAlignment != 0;
      if (!pad) continue;
      std::vector<int64_t> longer = segments;
      ++longer[i + 1];
      node.attributes.SetInts("segments", longer);
      EXPECT_FALSE(Verify(plan).ok()) << "segment " << i / 3;
      node.attributes = original;
      ++tried;
    }
  }
  EXPECT_GT(tried, 10);
}

INSTANTIATE_TEST_SUITE_P(Ways, StrategyMutations, ::testing::ValuesIn(Ways()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace shardgraph
