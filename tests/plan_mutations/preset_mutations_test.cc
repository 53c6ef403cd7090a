// Breaks the plans of presets, with every strategy, in every way that Verify
// must notice.
#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/config/train_config.h"
#include "fsdp/train/training_plan.h"
#include "graph/graph.h"
#include "graph/passes.h"
#include "graph/step_plan.h"
#include "graph/workspace.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/op.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr char kConfigs[] = "proto/configs";
constexpr char kTargets[] = "proto/targets";

// The strategy's name, or FULL_SHARD resharded to pairs.
constexpr char kResharded[] = "RESHARDED";

// Preset, target and strategy; two ranks, of HYBRID two groups of two, and four
// ranks resharded to pairs.
class PresetMutations : public ::testing::TestWithParam<
                            std::tuple<std::string, const char*, const char*>> {
 protected:
  PresetMutations() {
    const auto& [preset, target_name, strategy] = GetParam();
    auto config = LoadTrainConfig(preset, kConfigs, {});
    SG_CHECK_OK(config);
    auto model = MakeModel(config->model());
    SG_CHECK_OK(model);
    ShardSpec* shard = config->mutable_shard();
    int world = 2;
    if (strategy == std::string(kResharded)) {
      shard->set_reshard_group_size(2);
      world = 4;
    } else {
      ShardStrategy value;
      SG_CHECK(ShardStrategy_Parse(strategy, &value)) << strategy;
      shard->set_strategy(value);
      if (value == HYBRID) {
        shard->set_shard_group_size(2);
        world = 4;
      }
    }
    ResolveTrainConfig((*model)->max_positions(), world, &*config);
    auto target = LoadTarget(target_name, kTargets);
    SG_CHECK_OK(target);
    PlanRequest request;
    request.config = &*config;
    request.world_size = world;
    request.target = *target;
    request.workspace = KernelWorkspace(CpuKernels());
    auto training = MakeTrainingPlan(request);
    SG_CHECK_OK(training);
    plan_ = std::move((*training)->plan);
  }

  const Graph& graph() const { return plan_.graph; }
  bool Accepted() const { return Verify(plan_).ok(); }
  bool Touched(BufferId buffer) const {
    return plan_.memory.offsets[buffer] != kNone &&
           graph().buffers[buffer].bytes > 0;
  }
  static bool IsCollective(const Node& node) {
    return node.attributes.Has(kGroupAttribute) && node.attributes.Has("size");
  }

  StepPlan plan_;
};

TEST_P(PresetMutations, RemovedEdges) {
  ASSERT_TRUE(Accepted()) << Verify(plan_);
  for (PhaseSchedule& schedule : plan_.schedules) {
    for (size_t e = 0; e < schedule.edges.size(); ++e) {
      const Edge edge = schedule.edges[e];
      if (edge.kind != EdgeKind::kData) continue;
      schedule.edges.erase(schedule.edges.begin() + e);
      EXPECT_FALSE(Accepted()) << PrintNode(graph(), edge.from) << " -> "
                               << PrintNode(graph(), edge.to);
      schedule.edges.insert(schedule.edges.begin() + e, edge);
    }
  }
}

TEST_P(PresetMutations, MovedOffsets) {
  for (size_t b = 0; b < graph().buffers.size(); ++b) {
    if (!Touched(static_cast<BufferId>(b))) continue;
    plan_.memory.offsets[b] += 64;
    EXPECT_FALSE(Accepted()) << graph().buffers[b].name;
    plan_.memory.offsets[b] -= 64;
  }
}

TEST_P(PresetMutations, ShrunkBuffers) {
  // What a node needs as workspace is the kernel's word, and of the step's
  // state only some fields are touched: everything else is used to its last
  // byte.
  for (size_t b = 0; b < graph().buffers.size(); ++b) {
    Buffer& buffer = plan_.graph.buffers[b];
    if (!Touched(static_cast<BufferId>(b)) || buffer.name == "step_state" ||
        buffer.kind == MemoryKind::kWorkspace) {
      continue;
    }
    --buffer.bytes;
    EXPECT_FALSE(Accepted()) << buffer.name;
    ++buffer.bytes;
  }
}

TEST_P(PresetMutations, SwappedCollectives) {
  for (PhaseSchedule& schedule : plan_.schedules) {
    std::vector<size_t> at;
    for (size_t i = 0; i < schedule.order.size(); ++i)
      if (IsCollective(graph().node(schedule.order[i]))) at.push_back(i);
    for (size_t i = 0; i + 1 < at.size(); ++i) {
      const auto swap = [&] {
        std::swap(schedule.order[at[i]], schedule.order[at[i + 1]]);
        std::swap(schedule.lanes[at[i]], schedule.lanes[at[i + 1]]);
      };
      const bool one_lane = schedule.lanes[at[i]] == schedule.lanes[at[i + 1]];
      swap();
      // On two lanes with nothing in between, either order would do as long as
      // all ranks have the same: their hashes tell.
      if (Accepted()) {
        EXPECT_FALSE(one_lane);
        EXPECT_NE(HashPlan(plan_), plan_.hash);
      }
      swap();
    }
  }
}

TEST_P(PresetMutations, GathersAfterTheirReaders) {
  for (size_t p = 0; p < plan_.schedules.size(); ++p) {
    const PhaseSchedule original = plan_.schedules[p];
    for (size_t from = 0; from < original.order.size(); ++from) {
      const Node& node = graph().node(original.order[from]);
      if (node.op->name != "all_gather") continue;
      const BufferId gathered = graph().value(node.results[0]).buffer;
      size_t to = from + 1;
      const auto reads = [&](NodeId id) {
        const auto& operands = graph().node(id).operands;
        return std::any_of(operands.begin(), operands.end(), [&](ValueId v) {
          return graph().value(v).buffer == gathered;
        });
      };
      while (to < original.order.size() && !reads(original.order[to])) ++to;
      if (graph().buffers[gathered].lifetime == Lifetime::kRun) continue;
      ASSERT_LT(to, original.order.size());
      PhaseSchedule& schedule = plan_.schedules[p];
      std::rotate(schedule.order.begin() + from,
                  schedule.order.begin() + from + 1,
                  schedule.order.begin() + to + 1);
      std::rotate(schedule.lanes.begin() + from,
                  schedule.lanes.begin() + from + 1,
                  schedule.lanes.begin() + to + 1);
      EXPECT_FALSE(Accepted()) << PrintNode(graph(), original.order[from]);
      schedule = original;
    }
  }
}

TEST_P(PresetMutations, WrongGroups) {
  plan_.graph.groups.push_back({"other", 2, 5});
  int tried = 0;
  std::vector<NodeId> nodes;  // those that run
  for (const Phase& phase : graph().phases)
    nodes.insert(nodes.end(), phase.nodes.begin(), phase.nodes.end());
  for (const NodeId id : nodes) {
    Node& node = plan_.graph.nodes[id];
    if (!IsCollective(node)) continue;
    const Attributes original = node.attributes;
    const Group& own = *graph().FindGroup(original.String(kGroupAttribute));
    for (const char* name :
         {"shard", "replicate", "reshard", "other", "nobody"}) {
      const Group* const group = graph().FindGroup(name);
      if (group != nullptr && group->size == own.size &&
          group->stride == own.stride) {
        continue;  // the same ranks
      }
      node.attributes.SetString(kGroupAttribute, name);
      EXPECT_FALSE(Accepted()) << name << " for " << own.name;
      ++tried;
    }
    node.attributes = original;
  }
  EXPECT_GT(tried, 0);
}

// Sums over one rank alone: all else is as it should be.
TEST_P(PresetMutations, MissingSums) {
  plan_.graph.groups.push_back({"self", 1, 1});
  int tried = 0;
  for (Node& node : plan_.graph.nodes) {
    if (node.op->name != "all_reduce") continue;
    const Attributes original = node.attributes;
    node.attributes.SetString(kGroupAttribute, "self").SetInt("size", 1);
    EXPECT_FALSE(Accepted());
    node.attributes = original;
    ++tried;
  }
  EXPECT_GT(tried, 0);
}

TEST_P(PresetMutations, ContributionsThatReplaceEarlierOnes) {
  int tried = 0;
  for (Node& node : plan_.graph.nodes) {
    const int64_t mask = node.attributes.Int("accumulate");
    for (int r = 0; r < static_cast<int>(node.results.size()); ++r) {
      if ((mask >> r & 1) == 0) continue;
      const Node original = node;
      node.operands.erase(node.operands.begin() +
                          TiedOperand(*node.op, node.attributes,
                                      node.operands.size(), node.results.size(),
                                      r));
      node.attributes.SetInt("accumulate", mask & ~(int64_t{1} << r));
      EXPECT_FALSE(Accepted());
      node = original;
      ++tried;
    }
  }
  EXPECT_GT(tried, 0);
}

// A node that does nothing, though everything is ordered as before. Only where
// it updates in place what outlives the phase can no plan tell that it is
// missing; not so where what it should have added, such as the loss, is left
// unread.
TEST_P(PresetMutations, NodesThatDoNothing) {
  int accumulations = 0;
  for (const Phase& phase : graph().phases) {
    for (NodeId id : phase.nodes) {
      Node& node = plan_.graph.nodes[id];
      const Buffer& buffer = graph().buffer_of(node.results[0]);
      if (!node.op->in_place.empty() && buffer.lifetime == Lifetime::kRun &&
          node.op->name != "accumulate") {
        continue;
      }
      Node original = std::move(node);
      node = Node();
      node.op = original.op;
      node.lane = original.lane;
      const bool accepted = Accepted();
      node = std::move(original);
      EXPECT_FALSE(accepted) << PrintNode(graph(), id);
      accumulations += node.op->name == "accumulate" ||
                       node.attributes.Int("accumulate") != 0;
    }
  }
  EXPECT_GT(accumulations, 2);
}

// What is reduced replaces what earlier micro-batches have left.
TEST_P(PresetMutations, ShardsThatAreReplaced) {
  const OpDef* const cast = FindOp("cast");
  int tried = 0;
  for (Node& node : plan_.graph.nodes) {
    if (node.op->name != "accumulate" ||
        graph().buffer_of(node.results[0]).kind != MemoryKind::kGradientShard) {
      continue;
    }
    const Node original = node;
    node.op = cast;
    node.attributes = Attributes();
    node.operands = {original.operands[1]};
    EXPECT_FALSE(Accepted());
    node = original;
    ++tried;
  }
  EXPECT_GT(tried, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Presets, PresetMutations,
    ::testing::Combine(::testing::ValuesIn(PresetNames(kConfigs)),
                       ::testing::Values("cpu_avx2", "h100"),
                       ::testing::Values("FULL_SHARD", "SHARD_GRAD_OP", "ZERO1",
                                         "NO_SHARD", "HYBRID", kResharded)),
    [](const auto& info) {
      return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" +
             std::get<2>(info.param);
    });

}  // namespace
}  // namespace shardgraph
