#include "fsdp/checkpoint/filled_world.h"

#include <cstring>
#include <utility>

#include "fsdp/checkpoint/snapshot.h"
#include "fsdp/train/shard_writer.h"
#include "kernels/collective/store.h"
#include "kernels/random/random.h"
#include "kernels/step_state.h"

namespace shardgraph {

TrainConfig Config(int64_t vocab) {
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

World::World(int shards, int replicas, TestUse use, TrainConfig with)
    : TestWorld(shards, replicas, use, std::move(with)) {}

std::vector<ShardKind> Kinds(const World& run) {
  std::vector<ShardKind> kinds;
  if (run.plan->units[0].master != kNone) kinds.push_back(ShardKind::kMaster);
  if (run.plan->units[0].exp_avg != kNone) kinds.push_back(ShardKind::kExpAvg);
  if (run.plan->units[0].exp_avg_sq != kNone)
    kinds.push_back(ShardKind::kExpAvgSq);
  return kinds;
}

namespace {

RandomKey KeyOf(int64_t step, ShardKind kind, const Parameter& parameter) {
  return MakeRandomKey(step * 10 + static_cast<int>(kind),
                       HashName(parameter.name));
}

}  // namespace

float Value(int64_t step, ShardKind kind, const Parameter& parameter,
            int64_t element) {
  return RandomUniform(KeyOf(step, kind, parameter), element);
}

void Fill(World& run, int64_t step) {
  for (size_t rank = 0; rank < run.executors.size(); ++rank) {
    for (ShardKind kind : Kinds(run)) {
      ASSERT_TRUE(run.Shards(rank)
                      .Fill(kind,
                            [&](const Parameter& parameter, int64_t begin,
                                absl::Span<float> values) {
                              const RandomKey key =
                                  KeyOf(step, kind, parameter);
                              for (size_t i = 0; i < values.size(); ++i)
                                values[i] = RandomUniform(key, begin + i);
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

void ExpectFilled(World& run, int64_t step, std::vector<ShardKind> kinds) {
  for (size_t rank = 0; rank < run.executors.size(); ++rank) {
    ShardWriter shards = run.Shards(rank);
    for (const HeldRange& held : shards.Held()) {
      for (ShardKind kind : kinds) {
        std::vector<float> values(held.elements);
        ASSERT_TRUE(shards.Read(held, 0, absl::MakeSpan(values), kind).ok());
        const RandomKey key = KeyOf(step, kind, *held.parameter);
        for (int64_t i = 0; i < held.elements; ++i) {
          ASSERT_EQ(values[i], RandomUniform(key, held.begin + i))
              << held.parameter->name << " " << held.begin + i << " rank "
              << rank;
        }
      }
      const RandomKey key = KeyOf(step, ShardKind::kMaster, *held.parameter);
      for (int64_t i = 0; i < held.elements; ++i) {
        BFloat16 value;
        const BufferId compute = run.plan->units[held.unit].compute;
        std::memcpy(&value,
                    run.executors[rank].buffers[compute].data() +
                        2 * (held.shard_begin + i),
                    2);
        ASSERT_EQ(value.bits,
                  BFloat16(RandomUniform(key, held.begin + i)).bits);
      }
    }
  }
}

absl::Status Save(World& run, const std::string& folder, int64_t step,
                  std::map<std::string, std::string> extra,
                  const std::vector<std::unique_ptr<Snapshot>>& snapshots) {
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

absl::Status Load(World& run, const std::string& path,
                  const LoadOptions& options) {
  for (size_t rank = 0; rank < run.executors.size(); ++rank) {
    const auto manifest = LoadCheckpoint(path, run.Rank(rank), options);
    if (!manifest.ok()) return manifest.status();
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
