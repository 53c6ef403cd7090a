// Runs filled with known values, for tests of checkpoints: saved, loaded and
// compared element by element.
#ifndef FSDP_CHECKPOINT_FILLED_WORLD_H_
#define FSDP_CHECKPOINT_FILLED_WORLD_H_

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/checkpoint_folder.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/snapshot.h"
#include "fsdp/checkpoint/test_world.h"
#include "fsdp/train/shard_writer.h"
#include "gtest/gtest.h"
#include "kernels/collective/store.h"
#include "kernels/random/random.h"
#include "kernels/step_state.h"

namespace shardgraph {

inline TrainConfig Config(int64_t vocab = 13) {
  TrainConfig config;
  Gpt2Spec* model = config.mutable_model()->mutable_gpt2();
  model->set_vocab_size(vocab);
  model->set_n_positions(9);
  model->set_n_embd(12);
  model->set_n_head(2);
  model->set_n_layer(2);
  config.mutable_data()->set_batch_size(6);
  config.mutable_data()->set_sequence_length(9);
  config.mutable_checkpoint()->set_keep_last(2);
  config.mutable_run()->set_seed(5);
  return config;
}

struct World : TestWorld {
  explicit World(int shards, int replicas = 1, TestUse use = TestUse::kTrain,
                 TrainConfig with = Config())
      : TestWorld(shards, replicas, use, std::move(with)) {}
};

inline std::vector<ShardKind> Kinds(const World& run) {
  std::vector<ShardKind> kinds;
  if (run.plan->units[0].master != kNone) kinds.push_back(ShardKind::kMaster);
  if (run.plan->units[0].exp_avg != kNone) kinds.push_back(ShardKind::kExpAvg);
  if (run.plan->units[0].exp_avg_sq != kNone)
    kinds.push_back(ShardKind::kExpAvgSq);
  return kinds;
}

inline float Value(int64_t step, ShardKind kind, const Parameter& parameter,
                   int64_t element) {
  return RandomUniform(MakeRandomKey(step * 10 + static_cast<int>(kind),
                                     HashName(parameter.name)),
                       element);
}

inline void Fill(World& run, int64_t step) {
  for (size_t rank = 0; rank < run.executors.size(); ++rank) {
    for (ShardKind kind : Kinds(run)) {
      ASSERT_TRUE(run.Shards(rank)
                      .Fill(kind,
                            [&](const Parameter& parameter, int64_t begin,
                                absl::Span<float> values) {
                              for (size_t i = 0; i < values.size(); ++i)
                                values[i] =
                                    Value(step, kind, parameter, begin + i);
                              return absl::OkStatus();
                            })
                      .ok());
    }
    StepState state;
    state.run_step = step;
    state.optimizer_step = step - 1;
    state.beta1_power[0] = 0.5;
    state.beta1_power[7] = 0.25;
    state.beta2_power[1] = 0.125;
    state.loss_scale = 4;
    state.growth_counter = 3;
    std::memcpy(run.executors[rank].buffers[run.plan->state].data(), &state,
                sizeof(state));
  }
}

inline void ExpectFilled(World& run, int64_t step,
                         std::vector<ShardKind> kinds) {
  for (size_t rank = 0; rank < run.executors.size(); ++rank) {
    ShardWriter shards = run.Shards(rank);
    for (const HeldRange& held : shards.Held()) {
      for (ShardKind kind : kinds) {
        std::vector<float> values(held.elements);
        ASSERT_TRUE(shards.Read(held, 0, absl::MakeSpan(values), kind).ok());
        for (int64_t i = 0; i < held.elements; ++i) {
          ASSERT_EQ(values[i],
                    Value(step, kind, *held.parameter, held.begin + i))
              << held.parameter->name << " " << held.begin + i << " rank "
              << rank;
        }
      }
      for (int64_t i = 0; i < held.elements; ++i) {
        BFloat16 value;
        const BufferId compute = run.plan->units[held.unit].compute;
        std::memcpy(&value,
                    run.executors[rank].buffers[compute].data() +
                        2 * (held.shard_begin + i),
                    2);
        ASSERT_EQ(value.bits, BFloat16(Value(step, ShardKind::kMaster,
                                             *held.parameter, held.begin + i))
                                  .bits);
      }
    }
  }
}

// All ranks, rank 0 last: by then the others have told it all. `snapshots` of
// the ranks, or what they hold.
inline absl::Status Save(
    World& run, const std::string& folder, int64_t step,
    std::map<std::string, std::string> extra = {},
    const std::vector<std::unique_ptr<Snapshot>>& snapshots = {}) {
  SaveOptions options;
  options.folder = folder;
  options.step = step;
  options.extra = std::move(extra);
  InProcessStore store;
  options.store = &store;
  for (int rank = static_cast<int>(run.executors.size()); rank-- > 0;) {
    if (!snapshots.empty()) options.snapshot = snapshots[rank].get();
    const absl::Status status = SaveCheckpoint(run.Rank(rank), options);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

inline absl::Status Load(World& run, const std::string& path,
                         const LoadOptions& options = {}) {
  for (size_t rank = 0; rank < run.executors.size(); ++rank) {
    const auto manifest = LoadCheckpoint(path, run.Rank(rank), options);
    if (!manifest.ok()) return manifest.status();
  }
  return absl::OkStatus();
}

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
