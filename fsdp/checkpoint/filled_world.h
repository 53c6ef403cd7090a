// Runs filled with known values, for tests of checkpoints: saved, loaded and
// compared element by element.
#ifndef FSDP_CHECKPOINT_FILLED_WORLD_H_
#define FSDP_CHECKPOINT_FILLED_WORLD_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/snapshot.h"
#include "fsdp/checkpoint/test_world.h"
#include "fsdp/train/shard_writer.h"
#include "gtest/gtest.h"

namespace shardgraph {

TrainConfig Config(int64_t vocab = 13);

struct World : TestWorld {
  explicit World(int shards, int replicas = 1, TestUse use = TestUse::kTrain,
                 TrainConfig with = Config());
};

std::vector<ShardKind> Kinds(const World& run);

// What Fill gives an element at a step.
float Value(int64_t step, ShardKind kind, const Parameter& parameter,
            int64_t element);

void Fill(World& run, int64_t step);

void ExpectFilled(World& run, int64_t step, std::vector<ShardKind> kinds);

// All ranks, rank 0 last: by then the others have told it all. `snapshots` of
// the ranks, or what they hold.
absl::Status Save(World& run, const std::string& folder, int64_t step,
                  std::map<std::string, std::string> extra = {},
                  const std::vector<std::unique_ptr<Snapshot>>& snapshots = {});

absl::Status Load(World& run, const std::string& path,
                  const LoadOptions& options = {});

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
  }

  std::set<std::string> Names(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.insert(entry.path().filename().string());
    return names;
  }
  std::string Step(int64_t step) {
    return absl::StrCat(folder_, "/", CheckpointName(step));
  }
  // Changes one byte of a file, counted from its end when negative.
  void Damage(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at, at < 0 ? std::ios::end : std::ios::beg);
    const int byte = file.get();
    file.seekp(at, at < 0 ? std::ios::end : std::ios::beg);
    file.put(static_cast<char>(byte ^ 0x10));
    ASSERT_TRUE(file.good());
  }

  const std::string folder_;
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_FILLED_WORLD_H_
