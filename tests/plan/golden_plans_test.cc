// Small plans as text, whole: what the graph must be able to say. After a
// change that is meant, write them anew and read the difference:
//   bazel run //tests/plan:golden_plans_test -- --update
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/passes.h"
#include "gtest/gtest.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tests/plan/preset_plan.h"

namespace shardgraph {
namespace {

bool update_golden = false;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void ExpectGolden(const std::string& name, const StepPlan& plan) {
  const std::string path = absl::StrCat("tests/plan/golden/", name, ".txt");
  const std::string text = PrintPlan(plan);
  if (update_golden) {
    const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
    SG_CHECK(workspace != nullptr) << "--update works under bazel run";
    std::ofstream(absl::StrCat(workspace, "/", path)) << text;
    return;
  }
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const std::vector<std::string> expected =
      absl::StrSplit(ReadFile(path), '\n');
  for (size_t i = 0; i < std::max(lines.size(), expected.size()); ++i) {
    const std::string line = i < lines.size() ? lines[i] : "(end)";
    const std::string wanted = i < expected.size() ? expected[i] : "(end)";
    ASSERT_EQ(line, wanted) << path << ":" << i + 1
                            << "; if the change is meant: bazel run "
                               "//tests/plan:golden_plans_test -- --update";
  }
}

// Nodes of a phase in program order.
std::vector<const Node*> Nodes(const StepPlan& plan, absl::string_view phase) {
  const PhaseId id = plan.graph.FindPhase(phase);
  SG_CHECK(id != kNone) << phase;
  std::vector<const Node*> nodes;
  for (NodeId node : plan.graph.phases[id].nodes)
    nodes.push_back(&plan.graph.nodes[node]);
  return nodes;
}

std::vector<const Node*> Nodes(const StepPlan& plan, absl::string_view phase,
                               absl::string_view op) {
  std::vector<const Node*> nodes = Nodes(plan, phase);
  nodes.erase(
      std::remove_if(nodes.begin(), nodes.end(),
                     [&](const Node* node) { return node->op->name != op; }),
      nodes.end());
  return nodes;
}

constexpr char kTiny[] = R"(gpt2 { vocab_size: 11 n_positions: 4 n_embd: 8
    n_layer: 1 n_head: 2 resid_pdrop: 0 embd_pdrop: 0 attn_pdrop: 0 })";
constexpr char kTinyLlama[] = R"(llama { vocab_size: 11 hidden_size: 8
    intermediate_size: 12 num_hidden_layers: 1 num_attention_heads: 2
    num_key_value_heads: 1 max_position_embeddings: 8 })";

std::string Config(const std::string& model, const std::string& more) {
  return absl::StrCat("model { ", model, " } ", more);
}

TEST(GoldenPlans, TiedHeadWithThreeMicroBatches) {
  const auto plan =
      PlanText(Config(kTiny, "data { batch_size: 6 micro_batch_size: 1 }"), 2,
               TestTarget(4));
  EXPECT_EQ(MicroBatches(plan->config.data(), 2), 3);
  // One gradient of the table: the head writes it, the embedding adds to it.
  const auto head = Nodes(plan->plan(), "micro", "cross_entropy_head_gradient");
  ASSERT_EQ(head.size(), 1u);
  EXPECT_EQ(head[0]->attributes.Int("accumulate"), 0);
  const Value& table = plan->graph().values[head[0]->results[2]];
  int adding = 0;
  for (const Node* rows : Nodes(plan->plan(), "micro", "embedding_gradient")) {
    const Value& value = plan->graph().values[rows->results[0]];
    if (value.buffer != table.buffer || value.offset != table.offset) continue;
    EXPECT_EQ(rows->attributes.Int("accumulate"), 1);
    EXPECT_GT(value.version, table.version);
    ++adding;
  }
  EXPECT_EQ(adding, 1);
  // Over micro-batches each reduced shard is added, the first one written.
  const Value& micro = [&]() -> const Value& {
    const auto adds = Nodes(plan->plan(), "micro", "accumulate");
    return plan->graph().values[adds.back()->operands[2]];
  }();
  EXPECT_EQ(micro.offset, static_cast<int64_t>(offsetof(StepState, micro)));
  ExpectGolden("tied_head_three_micro_batches", plan->plan());
}

TEST(GoldenPlans, HybridTwoByTwo) {
  const auto plan =
      PlanText(Config(kTiny,
                      "data { batch_size: 4 } shard { strategy: HYBRID "
                      "shard_group_size: 2 }"),
               4, TestTarget(4));
  const Group* const shard = plan->graph().FindGroup("shard");
  const Group* const replicate = plan->graph().FindGroup("replicate");
  ASSERT_NE(shard, nullptr);
  ASSERT_NE(replicate, nullptr);
  EXPECT_EQ(std::pair(shard->size, shard->stride), std::pair(2, 1));
  EXPECT_EQ(std::pair(replicate->size, replicate->stride), std::pair(2, 2));
  for (const Node* gather : Nodes(plan->plan(), "micro", "all_gather"))
    EXPECT_EQ(gather->attributes.String(kGroupAttribute), "shard");
  // What is reduced within a group is summed over groups.
  std::set<BufferId> scattered, summed;
  for (const Node* node : Nodes(plan->plan(), "micro", "reduce_scatter")) {
    EXPECT_EQ(node->attributes.String(kGroupAttribute), "shard");
    scattered.insert(plan->graph().values[node->results[0]].buffer);
  }
  for (const Node* node : Nodes(plan->plan(), "micro", "all_reduce")) {
    EXPECT_EQ(node->attributes.String(kGroupAttribute), "replicate");
    summed.insert(plan->graph().values[node->operands[0]].buffer);
  }
  EXPECT_EQ(scattered.size(), plan->training->layout.units().size());
  EXPECT_EQ(scattered, summed);
  ExpectGolden("hybrid_two_by_two", plan->plan());
}

TEST(GoldenPlans, ReshardedToPairsOfFour) {
  const auto plan = PlanText(
      Config(kTiny, "data { batch_size: 4 } shard { reshard_group_size: 2 }"),
      4, TestTarget(4));
  const Group* const pair = plan->graph().FindGroup("reshard");
  ASSERT_NE(pair, nullptr);
  EXPECT_EQ(std::pair(pair->size, pair->stride), std::pair(2, 1));
  // What is gathered again was put aside in forward: a half of the whole.
  std::map<BufferId, const Node*> taken;
  for (const Node* take : Nodes(plan->plan(), "micro", "take_shard")) {
    const Value& piece = plan->graph().values[take->results[0]];
    EXPECT_EQ(2 * plan->graph().buffers[piece.buffer].bytes,
              plan->graph().buffer_of(take->operands[0]).bytes);
    taken[piece.buffer] = take;
  }
  int64_t kept = 0;
  for (const Node* gather : Nodes(plan->plan(), "micro", "all_gather")) {
    const bool forward = gather->direction == Direction::kForward;
    EXPECT_EQ(gather->attributes.String(kGroupAttribute),
              forward ? "shard" : "reshard");
    if (forward) continue;
    const auto from =
        taken.find(plan->graph().values[gather->operands[0]].buffer);
    ASSERT_NE(from, taken.end());
    EXPECT_EQ(from->second->unit, gather->unit);
    taken.erase(from);
    kept += plan->graph().buffer_of(gather->operands[0]).bytes;
  }
  EXPECT_TRUE(taken.empty());
  EXPECT_GT(kept, 0);
  ExpectGolden("resharded_to_pairs", plan->plan());
}

TEST(GoldenPlans, SelectiveRecomputeWithFusedOps) {
  const auto plan =
      PlanText(Config(kTinyLlama,
                      "data { batch_size: 2 } shard { recompute: SELECTIVE "
                      "recompute_ops: [\"swiglu\", \"rms_norm\"] }"),
               2, TestTarget(4));
  std::set<std::string> again;
  for (const Node* node : Nodes(plan->plan(), "micro")) {
    if (node->direction == Direction::kRecompute)
      again.insert(std::string(node->op->name));
  }
  EXPECT_EQ(again, (std::set<std::string>{"all_gather", "rms_norm", "swiglu"}));
  // The products of q, k, v and of gate, up are kept: one node each forward,
  // the latter with swiglu behind it, beside those of the output and the down
  // projection.
  int products = 0;
  for (const Node* node : Nodes(plan->plan(), "micro", "matmul"))
    products += node->direction == Direction::kForward;
  EXPECT_EQ(products, 3);
  EXPECT_EQ(Nodes(plan->plan(), "micro", "matmul_pointwise").size(), 1u);
  ExpectGolden("selective_recompute", plan->plan());
}

TEST(GoldenPlans, EvaluationAndDecodeShareTheArena) {
  const auto plan =
      PlanText(Config(kTinyLlama, "data { batch_size: 2 sequence_length: 8 }"),
               2, TestTarget(2), /*generate=*/true);
  const Graph& graph = plan->graph();
  const MemoryPlan& memory = plan->plan().memory;
  // The range of each phase's own buffers: all start at the transient part.
  for (const char* name : {"micro", "eval", "prefill", "decode"}) {
    int64_t begin = memory.arena_bytes;
    std::vector<Access> accesses;
    for (const Node* node : Nodes(plan->plan(), name))
      AppendAccesses(graph, *node, &accesses);
    for (const Access& access : accesses) {
      if (graph.buffers[access.buffer].lifetime != Lifetime::kPhase) continue;
      begin = std::min(begin, memory.offsets[access.buffer]);
      EXPECT_GE(memory.offsets[access.buffer], memory.persistent_bytes);
    }
    EXPECT_EQ(begin, memory.persistent_bytes) << name;
  }
  // Prefill and decode write the same caches, which live for the run.
  std::set<BufferId> caches[2];
  for (int i = 0; i < 2; ++i) {
    for (const Node* node :
         Nodes(plan->plan(), i == 0 ? "prefill" : "decode", "kv_write")) {
      const Value& value = graph.values[node->results[0]];
      EXPECT_EQ(graph.buffers[value.buffer].lifetime, Lifetime::kRun);
      caches[i].insert(value.buffer);
    }
  }
  EXPECT_EQ(caches[0].size(), 2u);
  EXPECT_EQ(caches[0], caches[1]);
  ExpectGolden("evaluation_and_decode", plan->plan());
}

// A frozen base in BF16 (table and projection, one flat parameter) with a LoRA
// adapter of rank 2, gathered over two ranks: logits of x W^T + (x A^T) B^T.
TEST(GoldenPlans, LoraWithAFrozenBase) {
  constexpr int64_t kVocab = 7, kWidth = 6, kRank = 2, kRows = 4;
  StepPlan plan;
  plan.target = "test";
  plan.num_lanes = 4;
  plan.graph.groups = {{"shard", 2, 1}};
  GraphBuilder b(&plan.graph);
  const auto persistent = [&](const char* name, MemoryKind kind, DType dtype,
                              int64_t numel, Lifetime lifetime) {
    Buffer buffer;
    buffer.name = name;
    buffer.bytes = numel * SizeOf(dtype);
    buffer.alignment = 4096;
    buffer.lifetime = lifetime;
    buffer.kind = kind;
    return b.AddBuffer(std::move(buffer));
  };
  const auto over = [] {
    return Attributes().SetString(kGroupAttribute, "shard").SetInt("size", 2);
  };
  b.SetPhase("micro");
  const UnitId base_unit = b.AddUnit("base"), lora_unit = b.AddUnit("lora");
  // Elements of a rank's shard; blocks of 64.
  constexpr int64_t kBase = 64, kLora = 64;
  const ValueId base_shard =
      b.External(persistent("base/compute", MemoryKind::kComputeParameter,
                            DType::kBF16, kBase, Lifetime::kRun),
                 TensorType(DType::kBF16, {kBase}));
  const ValueId lora_shard =
      b.External(persistent("lora/compute", MemoryKind::kComputeParameter,
                            DType::kBF16, kLora, Lifetime::kRun),
                 TensorType(DType::kBF16, {kLora}));
  const BufferId gradient_shard =
      persistent("lora/gradient", MemoryKind::kGradientShard, DType::kF32,
                 kLora, Lifetime::kStep);
  const auto gather = [&](UnitId unit, ValueId shard, int64_t numel) {
    b.SetUnit(unit);
    b.SetScope(plan.graph.units[unit].name);
    Buffer buffer;
    buffer.name = absl::StrCat(plan.graph.units[unit].name, "/gathered");
    buffer.bytes = 2 * numel * SizeOf(DType::kBF16);
    buffer.alignment = 4096;
    buffer.kind = MemoryKind::kGatheredParameter;
    return b.Emit1("all_gather", {shard}, over(),
                   Placement{b.AddBuffer(std::move(buffer)), 0,
                             TensorType(DType::kBF16, {2 * numel})});
  };
  const ValueId base = gather(base_unit, base_shard, kBase);
  const ValueId table = b.View(base, 0, {kVocab, kWidth}, {kWidth, 1});
  const ValueId weight = b.View(base, 64, {kWidth, kWidth}, {kWidth, 1});
  const ValueId x =
      b.Emit1("embedding",
              {b.Input("tokens", TensorType(DType::kI32, {kRows})), table});
  const ValueId lora = gather(lora_unit, lora_shard, kLora);
  const ValueId a = b.View(lora, 0, {kRank, kWidth}, {kWidth, 1});
  const ValueId up = b.View(lora, 64, {kWidth, kRank}, {kRank, 1});
  const Attributes transposed = Attributes().SetInt("transpose_b", 1);
  const ValueId narrow = b.Emit1("matmul", {x, a}, transposed);
  const ValueId adapted = b.Emit1("matmul", {narrow, up}, transposed);
  b.SetUnit(base_unit);
  b.SetScope("base");
  const ValueId plain = b.Emit1("matmul", {x, weight}, transposed);
  const ValueId y = b.Emit1("add", {plain, adapted});
  plan.graph.outputs["loss"] =
      b.Emit1("cross_entropy_head",
              {y, table, b.Input("targets", TensorType(DType::kI32, {kRows}))},
              Attributes().SetInt("chunk_rows", kRows));

  DifferentiateOptions options;
  options.leaves.push_back(
      {lora_shard, [&](ValueId gradient) {
         b.Emit1("accumulate",
                 {b.External(gradient_shard, TensorType(DType::kF32, {kLora})),
                  gradient,
                  b.StateField(offsetof(StepState, micro),
                               TensorType(DType::kI64, {}))});
       }});
  GradientBase whole;
  whole.value = lora;
  whole.alignment = 4096;
  whole.required = {{"lora.A", 0, kRank * kWidth},
                    {"lora.B", 64, kWidth * kRank}};
  options.bases.push_back(std::move(whole));
  SG_CHECK_OK(Differentiate(b, options));
  SG_CHECK_OK(Rematerialize(plan.graph, b.phase()));
  const TargetSpec target = TestTarget(4);
  SG_CHECK_OK(Lower(plan.graph, target, nullptr));
  auto schedules = Schedule(plan.graph, target, {});
  SG_CHECK_OK(schedules);
  plan.schedules = *std::move(schedules);
  auto memory = PlanMemory(plan.graph, plan.schedules);
  SG_CHECK_OK(memory);
  plan.memory = *std::move(memory);
  SG_CHECK_OK(Verify(plan));

  // One reduction, of the adapter; nothing of the base is ever a gradient to
  // keep, and only gradients of activations go through it.
  const auto reductions = Nodes(plan, "micro", "reduce_scatter");
  ASSERT_EQ(reductions.size(), 1u);
  EXPECT_EQ(reductions[0]->unit, lora_unit);
  for (const Node* node : Nodes(plan, "micro", "matmul")) {
    if (node->direction != Direction::kBackward) continue;
    for (ValueId result : node->results) {
      const Value& value = plan.graph.values[result];
      if (plan.graph.buffers[value.buffer].kind == MemoryKind::kGradient) {
        EXPECT_EQ(node->unit, lora_unit);
      }
    }
  }
  EXPECT_TRUE(Nodes(plan, "micro", "embedding_gradient").empty());
  const auto head = Nodes(plan, "micro", "cross_entropy_head_gradient");
  ASSERT_EQ(head.size(), 1u);
  EXPECT_EQ(head[0]->attributes.Int("omit"), 0b100);
  ExpectGolden("lora_frozen_base", plan);
}

}  // namespace
}  // namespace shardgraph

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--update") shardgraph::update_golden = true;
  }
  return RUN_ALL_TESTS();
}
