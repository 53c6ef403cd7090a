// The plan of Llama-3-70B over 1,024 ranks: made on any machine, in little
// memory, with its communication as the formulas say. A process of its own: it
// looks at the memory of the whole process.
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/plan/preset_plan.h"

namespace shardgraph {
namespace {

TEST(LargePlan, Llama370bOver1024Ranks) {
  constexpr int kWorld = 1024;
  const auto start = std::chrono::steady_clock::now();
  const auto plan =
      PlanPreset("llama3_70b", kWorld, "h100", {"data.batch_size=8192"});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  struct rusage usage = {};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  std::printf("planned and verified in %.2f s, %ld MB\n", seconds,
              usage.ru_maxrss / 1000);
  EXPECT_LT(usage.ru_maxrss, 1000 * 1000);  // KiB
  EXPECT_EQ(MicroBatches(plan->config.data(), kWorld), 8);

  // Forward gathers every unit, backward all again but the one used last (the
  // head) and the embedding, whose gradient does not read its table; gradients
  // are reduced in FP32. A shard moves to 1,023 others.
  int64_t shards = 0, once = 0;
  for (const ShardUnit& unit : plan->training->layout.units()) {
    shards += unit.flat.shard_numel;
    if (unit.name == "lm_head" || unit.name == "model.embed_tokens")
      once += unit.flat.shard_numel;
  }
  const CommunicationVolume micro =
      VolumeOf(plan->plan(), plan->graph().FindPhase("micro"));
  EXPECT_EQ(micro.all_gather_bytes, (2 * shards - once) * 2 * (kWorld - 1));
  EXPECT_EQ(micro.reduce_scatter_bytes, shards * 4 * (kWorld - 1));
  EXPECT_EQ(micro.all_reduce_bytes, 0);
  // One sum of squares per unit, and the loss with its count.
  const CommunicationVolume update =
      VolumeOf(plan->plan(), plan->graph().FindPhase("update"));
  const int64_t units =
      static_cast<int64_t>(plan->training->layout.units().size());
  EXPECT_EQ(units, 83);
  EXPECT_EQ(update.all_gather_bytes + update.reduce_scatter_bytes, 0);
  EXPECT_EQ(update.all_reduce_bytes, 2 * units * 8 * (kWorld - 1) / kWorld +
                                         2 * 16 * (kWorld - 1) / kWorld);
}

}  // namespace
}  // namespace shardgraph
