// Figures of plans by formula: units, padding, state, peaks.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/config/train_config.h"
#include "gtest/gtest.h"
#include "kernels/status_macros.h"
#include "tests/plan/preset_plan.h"
#include "tools/presets/presets.h"

namespace shardgraph {
namespace {

const std::vector<std::string>& Presets() {
  static const auto& names =
      *new std::vector<std::string>(PresetNames(DataPath("proto/configs")));
  return names;
}

int64_t KindBytes(const MemoryPlan& memory, MemoryKind kind) {
  return memory.bytes_by_kind[static_cast<int>(kind)];
}

// --- Units ------------------------------------------------------------------

std::vector<std::pair<std::string, int64_t>> SizeBasedUnits(
    const std::string& preset) {
  const auto config = LoadConfig(preset, {"shard.wrap_policy=SIZE_BASED",
                                          "shard.min_num_params=100000000"});
  SG_CHECK_OK(config);
  const auto model = MakeModel(config->model());
  SG_CHECK_OK(model);
  const auto roots = SelectUnits(**model, config->shard());
  SG_CHECK_OK(roots);
  std::vector<std::pair<std::string, int64_t>> units;
  for (const UnitRoot& root : *roots)
    units.push_back({root.module->name(), root.numel});
  return units;
}

TEST(SizeBased, Llama27b) {
  std::vector<std::pair<std::string, int64_t>> expected = {
      {"", 0}, {"model", 2147749888}, {"model.embed_tokens", 131072000}};
  for (int layer = 0; layer < 32; ++layer)
    expected.push_back(
        {absl::StrCat("model.layers.", layer, ".mlp"), 135266304});
  expected.push_back({"lm_head", 131072000});
  EXPECT_EQ(SizeBasedUnits("llama2_7b"), expected);
}

TEST(SizeBased, Gpt2) {
  using Units = std::vector<std::pair<std::string, int64_t>>;
  EXPECT_EQ(SizeBasedUnits("gpt2_124m"),
            (Units{{"", 0}, {"transformer", 124439808}}));
  EXPECT_EQ(SizeBasedUnits("gpt2_1558m"),
            (Units{{"", 0}, {"transformer", 1557611200}}));
}

// --- Padding and state -------------------------------------------------------

TEST(Layout, PaddingOfPresetsIsSmall) {
  for (const std::string& preset : Presets()) {
    const auto config = LoadConfig(preset, {});
    SG_CHECK_OK(config);
    const auto model = MakeModel(config->model());
    SG_CHECK_OK(model);
    for (int world = 1; world <= 8; ++world) {
      SCOPED_TRACE(absl::StrCat(preset, ", world ", world));
      const auto layout = MakeLayout(**model, config->shard(), world);
      SG_CHECK_OK(layout);
      int64_t numel = 0, padded = 0;
      for (const ShardUnit& unit : layout->units()) {
        numel += unit.flat.numel;
        padded += unit.flat.padded_numel;
        EXPECT_EQ(unit.flat.padded_numel, unit.flat.shard_numel * world);
      }
      EXPECT_EQ(numel, (*model)->numel());
      EXPECT_LT(static_cast<double>(padded - numel), 1e-3 * numel);
    }
  }
}

TEST(Memory, MasterAndOptimizerAreOneNthOfTheParameters) {
  for (int world : {1, 2, 8}) {
    SCOPED_TRACE(world);
    const auto plan = PlanPreset("gpt2_124m", world, "cpu_avx2");
    int64_t padding = 0;
    for (const ShardUnit& unit : plan->training->layout.units())
      padding += unit.flat.padded_numel - unit.flat.numel;
    const MemoryPlan& memory = plan->plan().memory;
    const int64_t share = (124439808 + padding) / world;
    EXPECT_EQ(KindBytes(memory, MemoryKind::kMasterParameter), 4 * share);
    EXPECT_EQ(KindBytes(memory, MemoryKind::kOptimizerState), 8 * share);
    EXPECT_EQ(KindBytes(memory, MemoryKind::kComputeParameter), 2 * share);
    EXPECT_EQ(KindBytes(memory, MemoryKind::kGradientShard), 4 * share);
  }
}

// --- Peaks -------------------------------------------------------------------

TEST(Memory, TransientPeakIsNearItsLowerBound) {
  for (const std::string& preset : Presets()) {
    for (const char* target : {"cpu_avx2", "h100"}) {
      for (int world : {2, 8}) {
        const auto plan = PlanPreset(preset, world, target);
        const MemoryPlan& memory = plan->plan().memory;
        const double ratio = static_cast<double>(memory.transient_bytes) /
                             memory.transient_lower_bound;
        std::printf(
            "%-14s world %d %-9s arena %8.1f MiB, transient %8.1f MiB, "
            "%.4f of the bound\n",
            preset.c_str(), world, target, memory.arena_bytes / 1048576.0,
            memory.transient_bytes / 1048576.0, ratio);
        EXPECT_GE(ratio, 1.0);
        EXPECT_LE(ratio, preset == "gpt2_124m" ? 1.02 : 1.05)
            << preset << ", world " << world << ", " << target;
        EXPECT_EQ(memory.arena_bytes,
                  memory.persistent_bytes + memory.transient_bytes);
      }
    }
  }
}

// GPT-2 124M by hand: 12 blocks, 1,024 rows of 768, the head tied to the table.
TEST(Memory, Gpt2TotalByHand) {
  constexpr int64_t kWidth = 768, kRows = 1024, kBlocks = 12, kHeads = 12;
  const auto plan = PlanPreset("gpt2_124m", 2, "cpu_avx2");
  const MemoryPlan& memory = plan->plan().memory;
  const int64_t block = 12 * kWidth * kWidth + 13 * kWidth;
  const int64_t positions = 1024 * kWidth;
  const int64_t root = 50257 * kWidth + 2 * kWidth;

  // Master, two moments and gradient shard in FP32; the BF16 shard to gather.
  const int64_t state =
      (kBlocks * block + positions + root) / 2 * (4 + 8 + 4 + 2);
  // What a block keeps for backward. Rows of BF16: its input, the outputs of
  // both norms, q, k and v, attention's output, the stream after it, and the
  // feed-forward's 4 C before and after its activation. FP32: mean and rstd of
  // both norms, a log-sum-exp per head.
  const int64_t saved = kRows * (16 * kWidth * 2 + (4 + kHeads) * 4);
  // The peak is at the head: the root's parameters and their gradient, the
  // first block of backward gathered ahead, all that is kept, the last block's
  // output, the final norm's output and its gradient, logits.
  int64_t logits = 0;
  for (const Node& node : plan->graph().nodes) {
    if (node.op->name == "cross_entropy_head_gradient")
      logits = plan->graph().buffers[node.workspace].bytes;
  }
  // One chunk of them, and what their products pack.
  EXPECT_GT(logits, kRows * 50257 * 2);
  EXPECT_LT(logits, kRows * 50257 * 2 + (16 << 20));
  const int64_t by_hand = state + root * (2 + 4) + block * 2 + kBlocks * saved +
                          3 * kRows * kWidth * 2 + logits;
  std::printf("arena %.2f MiB, by hand %.2f MiB: %.4f\n",
              memory.arena_bytes / 1048576.0, by_hand / 1048576.0,
              static_cast<double>(memory.arena_bytes) / by_hand);
  EXPECT_LE(memory.arena_bytes, 1.02 * by_hand);
  EXPECT_GE(memory.arena_bytes, 0.98 * by_hand);
}

}  // namespace
}  // namespace shardgraph
