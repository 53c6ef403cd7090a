#include "fsdp/checkpoint/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/checkpoint_folder.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/checkpoint/test_world.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/train/shard_writer.h"
#include "gtest/gtest.h"
#include "kernels/collective/store.h"
#include "kernels/random/random.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

TrainConfig Config(int64_t vocab = 13) {
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

std::vector<ShardKind> Kinds(const World& run) {
  std::vector<ShardKind> kinds;
  if (run.plan->units[0].master != kNone) kinds.push_back(ShardKind::kMaster);
  if (run.plan->units[0].exp_avg != kNone) kinds.push_back(ShardKind::kExpAvg);
  if (run.plan->units[0].exp_avg_sq != kNone)
    kinds.push_back(ShardKind::kExpAvgSq);
  return kinds;
}

float Value(int64_t step, ShardKind kind, const Parameter& parameter,
            int64_t element) {
  return RandomUniform(MakeRandomKey(step * 10 + static_cast<int>(kind),
                                     HashName(parameter.name)),
                       element);
}

void Fill(World& run, int64_t step) {
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

void ExpectFilled(World& run, int64_t step, std::vector<ShardKind> kinds) {
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

// All ranks, rank 0 last: by then the others have told it all.
absl::Status Save(World& run, const std::string& folder, int64_t step,
                  std::map<std::string, std::string> extra = {}) {
  SaveOptions options;
  options.folder = folder;
  options.step = step;
  options.extra = std::move(extra);
  InProcessStore store;
  options.store = &store;
  for (int rank = static_cast<int>(run.executors.size()); rank-- > 0;) {
    const absl::Status status = SaveCheckpoint(run.Rank(rank), options);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Load(World& run, const std::string& path,
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
    fs::remove_all(folder_);
  }

  std::set<std::string> Names(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder))
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

TEST_F(CheckpointTest, AnyWorldSizeToAnyOther) {
  for (int from : {1, 2, 3, 5, 16}) {
    World saved(from);
    Fill(saved, 100 + from);
    ASSERT_TRUE(Save(saved, folder_, 100 + from, {{"note", "x"}}).ok());
    for (int to : {1, 2, 4, 7}) {
      World loaded(to);
      ASSERT_TRUE(Load(loaded, Step(100 + from)).ok());
      ExpectFilled(loaded, 100 + from, Kinds(loaded));
      StepState state;
      std::memcpy(&state,
                  loaded.executors[to - 1].buffers[loaded.plan->state].data(),
                  sizeof(state));
      EXPECT_EQ(state.run_step, 100 + from);
      EXPECT_EQ(state.optimizer_step, 99 + from);
      EXPECT_EQ(state.beta1_power[0], 0.5);
      EXPECT_EQ(state.beta1_power[7], 0.25);
      EXPECT_EQ(state.beta2_power[1], 0.125);
      EXPECT_EQ(state.beta2_power[0], 1);
      EXPECT_EQ(state.loss_scale, 4);
      EXPECT_EQ(state.growth_counter, 3);
    }
  }
  const auto manifest = ReadCheckpointManifest(Step(103));
  EXPECT_EQ(manifest.status().code(), absl::StatusCode::kDataLoss)
      << "keep_last is 2";
  const auto kept = ReadCheckpointManifest(Step(105));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->step(), 105);
  EXPECT_EQ(kept->next_sequence(), 105 * 6);
  EXPECT_EQ(kept->world_size(), 5);
  EXPECT_EQ(kept->plan_hash(), "77");
  EXPECT_EQ(kept->config().run().seed(), 5u);
  EXPECT_EQ(kept->extra().at("note"), "x");
}

TEST_F(CheckpointTest, ReplicasWriteNothing) {
  World saved(2, 2);
  Fill(saved, 3);
  ASSERT_TRUE(Save(saved, folder_, 3).ok());
  for (const std::string& name : Names(Step(3))) {
    EXPECT_TRUE(name == "manifest.textproto" ||
                absl::StartsWith(name, "shard-00000-") ||
                absl::StartsWith(name, "shard-00001-"))
        << name;
  }
  World loaded(1, 3);
  ASSERT_TRUE(Load(loaded, Step(3)).ok());
  ExpectFilled(loaded, 3, Kinds(loaded));
}

TEST_F(CheckpointTest, FilesSayWhichBoxesTheyHold) {
  World saved(3);
  Fill(saved, 8);
  ASSERT_TRUE(Save(saved, folder_, 8).ok());
  EXPECT_EQ(Names(folder_), std::set<std::string>{"step_0000008"});
  // The whole of each tensor, put together from the files alone.
  std::map<std::string, int64_t> elements;
  for (const std::string& name : Names(Step(8))) {
    if (name == "manifest.textproto") continue;
    const auto file = SafetensorsFile::Open(absl::StrCat(Step(8), "/", name));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->metadata().at("DCP_VERSION"), "1.0");
    EXPECT_EQ((*file)->metadata().at("format"), "pt");
    for (const SafetensorsEntry& entry : (*file)->entries()) {
      elements[entry.name] += NumElements(entry.shape);
      EXPECT_TRUE(absl::StrContains(
          (*file)->metadata().at("DCP_SHARDING_INFO"),
          absl::StrCat("\"", entry.name, "\":{\"saved_offsets\":[")));
    }
  }
  for (const Parameter* parameter : saved.plan->model->parameters()) {
    for (const std::string prefix :
         {"", "optimizer.exp_avg/", "optimizer.exp_avg_sq/"})
      EXPECT_EQ(elements[prefix + parameter->name], parameter->numel());
  }
  EXPECT_EQ(elements.size(), 3 * saved.plan->model->parameters().size());
}

TEST_F(CheckpointTest, TensorsOfSeveralChunks) {
  World saved(1, 1, TestUse::kTrain, Config(100000));  // 1.2 M elements
  Fill(saved, 1);
  ASSERT_TRUE(Save(saved, folder_, 1).ok());
  const auto manifest = ReadCheckpointManifest(Step(1));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  int chunks = 0;
  for (const CheckpointTensor& tensor : manifest->tensors()) {
    for (const CheckpointPiece& piece : tensor.pieces())
      chunks = std::max(chunks, piece.crc32c_size());
  }
  EXPECT_GE(chunks, 2);
  World loaded(3, 1, TestUse::kTrain, Config(100000));
  ASSERT_TRUE(Load(loaded, Step(1)).ok());
  ExpectFilled(loaded, 1, Kinds(loaded));
}

TEST_F(CheckpointTest, KeepsTheNewestAndClearsWhatWasLeft) {
  World run(2);
  Fill(run, 1);
  for (int64_t step : {10, 20}) ASSERT_TRUE(Save(run, folder_, step).ok());
  // Left by an interrupted save of three ranks, here of the same step.
  for (const char* name : {"step_0000030.tmp", "step_0000025.tmp"}) {
    fs::create_directories(absl::StrCat(folder_, "/", name));
    std::ofstream(absl::StrCat(folder_, "/", name,
                               "/shard-00002-model-00001-of-00001.safetensors"))
        << "junk";
  }
  fs::create_directories(absl::StrCat(folder_, "/step_0000005.old"));
  fs::create_directories(absl::StrCat(folder_, "/step_0000007"));
  fs::create_directories(absl::StrCat(folder_, "/mine"));
  ASSERT_TRUE(Save(run, folder_, 30).ok());
  EXPECT_EQ(Names(folder_),
            (std::set<std::string>{"mine", "step_0000007", "step_0000020",
                                   "step_0000030"}));
  for (const std::string& name : Names(Step(30)))
    EXPECT_FALSE(absl::StartsWith(name, "shard-00002")) << name;

  // After going back to step 15: newer ones stay, the same step is replaced.
  ASSERT_TRUE(Save(run, folder_, 15).ok());
  Fill(run, 2);
  ASSERT_TRUE(Save(run, folder_, 20).ok());
  EXPECT_EQ(Names(folder_),
            (std::set<std::string>{"mine", "step_0000007", "step_0000015",
                                   "step_0000020", "step_0000030"}));
  World loaded(1);
  ASSERT_TRUE(Load(loaded, Step(20)).ok());
  ExpectFilled(loaded, 2, Kinds(loaded));

  run.config.mutable_checkpoint()->set_keep_last(0);
  ASSERT_TRUE(Save(run, folder_, 40).ok());
  EXPECT_EQ(ListCheckpoints(folder_).size(), 4u);
  EXPECT_EQ(ListCheckpoints(folder_)[0].step, 40);
}

TEST_F(CheckpointTest, ResolvesWhatAUserMeans) {
  World run(1);
  Fill(run, 1);
  const std::string checkpoints = folder_ + "/checkpoints";
  EXPECT_EQ(ResolveCheckpoint(folder_).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(ListCheckpoints(checkpoints).empty());
  ASSERT_TRUE(Save(run, checkpoints, 9).ok());
  ASSERT_TRUE(Save(run, checkpoints, 10000000).ok());
  for (const std::string& path :
       {folder_, checkpoints, checkpoints + "/step_10000000"})
    EXPECT_EQ(ResolveCheckpoint(path).value_or("none"),
              checkpoints + "/step_10000000");
  EXPECT_EQ(ResolveCheckpoint(checkpoints + "/step_0000009").value_or("none"),
            checkpoints + "/step_0000009");
}

TEST_F(CheckpointTest, DamageIsNamedAndPassedOver) {
  World run(2);
  Fill(run, 1);
  ASSERT_TRUE(Save(run, folder_, 1).ok());
  Fill(run, 2);
  ASSERT_TRUE(Save(run, folder_, 2).ok());
  std::string shard;
  for (const std::string& name : Names(Step(2))) {
    if (absl::StartsWith(name, "shard-00001-model-00001-")) shard = "/" + name;
  }
  const auto agree = [](bool mine) -> absl::StatusOr<bool> { return mine; };
  const struct {
    const char* what;
    std::function<void()> damage;
    std::string message;
  } cases[] = {
      {"a byte of the last tensor", [&] { Damage(Step(2) + shard, -1); },
       "checksum"},
      {"a byte of the header", [&] { Damage(Step(2) + shard, 8); }, shard},
      {"a truncated file",
       [&] {
         fs::resize_file(Step(2) + shard, fs::file_size(Step(2) + shard) - 1);
       },
       "the manifest says"},
      {"a missing file", [&] { fs::remove(Step(2) + shard); }, shard},
      {"a byte of the manifest",
       [&] { Damage(Step(2) + "/manifest.textproto", 100); },
       "manifest.textproto: its checksum"},
      {"a cut manifest",
       [&] { fs::resize_file(Step(2) + "/manifest.textproto", 100); },
       "manifest.textproto"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    ASSERT_TRUE(Save(run, folder_, 2).ok());
    c.damage();
    // On one rank, which reads everything.
    World loaded(1);
    const auto direct = LoadCheckpoint(Step(2), loaded.Rank(0));
    EXPECT_EQ(direct.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(absl::StrContains(direct.status().message(), c.message))
        << direct.status();
    const auto newest = LoadNewestCheckpoint(folder_, loaded.Rank(0), agree);
    ASSERT_TRUE(newest.ok()) << newest.status();
    EXPECT_EQ((*newest)->step(), 1);
    ExpectFilled(loaded, 1, Kinds(loaded));
  }
  // An interrupted one is not even considered.
  fs::remove_all(Step(2));
  fs::create_directories(Step(2));
  World loaded(1);
  auto newest = LoadNewestCheckpoint(folder_, loaded.Rank(0), agree);
  ASSERT_TRUE(newest.ok() && newest->has_value());
  EXPECT_EQ((*newest)->step(), 1);
  // All damaged: an error. None: nothing.
  Damage(Step(1) + "/manifest.textproto", 100);
  EXPECT_EQ(
      LoadNewestCheckpoint(folder_, loaded.Rank(0), agree).status().code(),
      absl::StatusCode::kDataLoss);
  newest = LoadNewestCheckpoint(folder_ + "/none", loaded.Rank(0), agree);
  ASSERT_TRUE(newest.ok());
  EXPECT_FALSE(newest->has_value());
}

TEST_F(CheckpointTest, RanksAgreeOnWhichToTake) {
  World run(2);
  for (int64_t step : {1, 2}) {
    Fill(run, step);
    ASSERT_TRUE(Save(run, folder_, step).ok());
  }
  // The other rank cannot read the newest.
  std::vector<bool> asked;
  const auto agree = [&](bool mine) -> absl::StatusOr<bool> {
    asked.push_back(mine);
    return asked.size() > 1;
  };
  World loaded(2);
  const auto manifest = LoadNewestCheckpoint(folder_, loaded.Rank(1), agree);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ((*manifest)->step(), 1);
  EXPECT_EQ(asked, (std::vector<bool>{true, true}));
}

TEST_F(CheckpointTest, PlansWithoutTrainingTakeTheWeights) {
  World run(2);
  Fill(run, 4);
  ASSERT_TRUE(Save(run, folder_, 4).ok());
  World generate(3, 1, TestUse::kGenerate);
  ASSERT_TRUE(Load(generate, Step(4)).ok());
  ExpectFilled(generate, 4, {});

  World fine_tune(1);
  Fill(fine_tune, 9);
  ASSERT_TRUE(Load(fine_tune, Step(4), {.weights_only = true}).ok());
  ExpectFilled(fine_tune, 4, {ShardKind::kMaster});
  std::vector<float> moment(5);
  const HeldRange held = fine_tune.Shards(0).Held()[0];
  ASSERT_TRUE(fine_tune.Shards(0)
                  .Read(held, 0, absl::MakeSpan(moment), ShardKind::kExpAvg)
                  .ok());
  EXPECT_EQ(moment[3], Value(9, ShardKind::kExpAvg, *held.parameter, 3));
}

TEST_F(CheckpointTest, AnotherModelOrOptimizerIsRefused) {
  World run(1);
  Fill(run, 4);
  ASSERT_TRUE(Save(run, folder_, 4).ok());
  const auto refused = [&](World other, const std::string& what) {
    const absl::Status status = Load(other, Step(4));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), what)) << status;
    // Not a reason to take an older one.
    EXPECT_EQ(
        LoadNewestCheckpoint(folder_, other.Rank(0), nullptr).status().code(),
        absl::StatusCode::kFailedPrecondition);
  };
  refused(World(1, 1, TestUse::kTrain, Config(14)),
          "transformer.wte.weight of shape [13, 12], but the model's is [14");
  TrainConfig config = Config();
  config.mutable_model()->mutable_gpt2()->set_n_layer(3);
  refused(World(1, 1, TestUse::kTrain, config),
          "no parameter transformer.h.2.");
  config.mutable_model()->mutable_gpt2()->set_n_layer(1);
  refused(World(1, 1, TestUse::kTrain, config),
          "which the model does not have");

  World sgd(1, 1, TestUse::kMomentum);
  Fill(sgd, 5);
  ASSERT_TRUE(Save(sgd, folder_, 5).ok());
  World adamw(1);
  const absl::Status status = Load(adamw, Step(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(
      absl::StrContains(status.message(), "has no optimizer.exp_avg_sq/"))
      << status;
}

TEST_F(CheckpointTest, ContinuingNeedsTheSameOrderOfData) {
  World run(1);
  ASSERT_TRUE(Save(run, folder_, 4).ok());
  const auto manifest = ReadCheckpointManifest(Step(4));
  ASSERT_TRUE(manifest.ok());
  EXPECT_TRUE(CheckContinues(*manifest, Config()).ok());
  const auto refused = [&](const TrainConfig& config, const char* message) {
    const absl::Status status = CheckContinues(*manifest, config);
    EXPECT_TRUE(absl::StrContains(status.message(), message)) << status;
  };
  TrainConfig config = Config();
  config.mutable_data()->set_batch_size(7);
  refused(config,
          "data.batch_size is 7, but the checkpoint of step 4 was made "
          "with 6");
  config = Config();
  config.mutable_data()->set_sequence_length(8);
  refused(config, "data.sequence_length is 8");
  config = Config();
  config.mutable_run()->set_seed(6);
  refused(config, "run.seed is 6");
  config = Config();
  config.mutable_optimizer()->set_kind(OptimizerSpec::SGD);
  refused(config, "optimizer.kind is SGD");
}

TEST_F(CheckpointTest, FailuresNameThePlaceAndLeaveWhatWasThere) {
  World run(2);
  Fill(run, 1);
  ASSERT_TRUE(Save(run, folder_, 1).ok());
  std::ofstream(folder_ + "/file") << "x";
  const absl::Status status = Save(run, folder_ + "/file/below", 2);
  EXPECT_TRUE(absl::StrContains(status.message(), folder_ + "/file/below"))
      << status;
  // A rank that never comes: no manifest, no checkpoint.
  InProcessStore store;
  SaveOptions options;
  options.folder = folder_;
  options.step = 2;
  options.store = &store;
  options.timeout = absl::ZeroDuration();
  const absl::Status late = SaveCheckpoint(run.Rank(0), options);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(late.message(), "rank 1: it has not written"))
      << late;
  EXPECT_EQ(Names(folder_),
            (std::set<std::string>{"file", "step_0000001", "step_0000002.tmp"}))
      << "rank 1 may still write";
  // A rank that cannot write: nothing stays, the next one is fine.
  options.free_bytes = [](const std::string&) -> absl::StatusOr<int64_t> {
    return 1000;
  };
  const absl::Status full = SaveCheckpoint(run.Rank(1), options);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(full.message(), folder_ + " has 0.0 MB free"))
      << full;
  options.free_bytes = nullptr;
  const absl::Status other = SaveCheckpoint(run.Rank(0), options);
  EXPECT_TRUE(absl::StrContains(other.message(),
                                absl::StrCat("rank 1: ", full.message())))
      << other;
  EXPECT_EQ(Names(folder_), (std::set<std::string>{"file", "step_0000001"}));
  // Room for its own part is not enough for rank 0.
  options.free_bytes = [](const std::string&) -> absl::StatusOr<int64_t> {
    return (1 << 20) + 30000;
  };
  EXPECT_TRUE(SaveCheckpoint(run.Rank(1), options).ok());
  EXPECT_EQ(SaveCheckpoint(run.Rank(0), options).code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(ListCheckpoints(folder_).size(), 1u);
  EXPECT_EQ(ListCheckpoints(folder_)[0].step, 1);
}

TEST_F(CheckpointTest, CompleteButNotRenamed) {
  World run(2);
  for (int64_t step : {1, 2, 3}) {
    Fill(run, step);
    ASSERT_TRUE(Save(run, folder_, step).ok());
  }
  // As a kill leaves them: complete and not renamed; without a manifest; moved
  // out of the way of one that never came.
  fs::rename(Step(3), Step(3) + ".tmp");
  fs::create_directories(Step(4) + ".tmp");
  fs::rename(Step(2), Step(2) + ".old");
  const std::vector<std::string> said = ClearInterruptedSaves(folder_);
  ASSERT_EQ(said.size(), 3u);
  EXPECT_TRUE(absl::StrContains(said[0], Step(2) + " was complete"));
  EXPECT_TRUE(absl::StrContains(said[1], Step(3) + " was complete"));
  EXPECT_TRUE(absl::StrContains(said[2], Step(4) + ".tmp: removed"));
  EXPECT_EQ(Names(folder_),
            (std::set<std::string>{"step_0000002", "step_0000003"}));
  EXPECT_TRUE(ClearInterruptedSaves(folder_ + "/none").empty());
}

TEST_F(CheckpointTest, KeepsEveryNth) {
  World run(1);
  run.config.mutable_checkpoint()->set_keep_last(1);
  run.config.mutable_checkpoint()->set_keep_every(20);
  for (int64_t step : {10, 20, 30, 40, 50})
    ASSERT_TRUE(Save(run, folder_, step).ok());
  EXPECT_EQ(
      Names(folder_),
      (std::set<std::string>{"step_0000020", "step_0000040", "step_0000050"}));
}

// From 4 ranks to any other way of holding the same, and back.
TEST_F(CheckpointTest, AnyStrategyAndWrapPolicy) {
  World saved(4);
  Fill(saved, 6);
  ASSERT_TRUE(Save(saved, folder_, 6).ok());
  ShardSpec by_size, by_name;
  by_size.set_wrap_policy(SIZE_BASED);
  by_size.set_min_num_params(100);
  by_name.set_wrap_policy(BY_NAME);
  by_name.set_wrap_pattern(".*attn");
  const struct {
    int shards, replicas;
    ShardSpec spec;
  } cases[] = {{1, 1, {}},      {2, 1, {}},      {3, 1, {}},
               {5, 1, {}},      {1, 3, {}},      {1, 5, {}},
               {2, 2, {}},      {3, 2, {}},      {4, 1, by_size},
               {3, 1, by_name}, {2, 3, by_size}, {1, 2, by_name}};
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.shards, " x ", c.replicas, " ",
                              c.spec.ShortDebugString()));
    TrainConfig config = Config();
    *config.mutable_shard() = c.spec;
    World other(c.shards, c.replicas, TestUse::kTrain, config);
    ASSERT_TRUE(Load(other, Step(6)).ok());
    ExpectFilled(other, 6, Kinds(other));
    ASSERT_TRUE(Save(other, folder_ + "/back", 6).ok());
    World back(4);
    ASSERT_TRUE(Load(back, folder_ + "/back/step_0000006").ok());
    ExpectFilled(back, 6, Kinds(back));
    // Every byte of weights and moments, and of the state that outlives a step.
    for (int rank = 0; rank < 4; ++rank) {
      for (const UnitBuffers& unit : back.plan->units) {
        for (BufferId id :
             {unit.compute, unit.master, unit.exp_avg, unit.exp_avg_sq}) {
          // Padding apart, which nobody loads: filled alike by both.
          EXPECT_EQ(back.executors[rank].buffers[id],
                    saved.executors[rank].buffers[id]);
        }
      }
      EXPECT_EQ(back.executors[rank].buffers[back.plan->state],
                saved.executors[rank].buffers[saved.plan->state]);
    }
  }
}

TEST_F(CheckpointTest, PartsOfAnotherModel) {
  World run(2);
  Fill(run, 4);
  ASSERT_TRUE(Save(run, folder_, 4).ok());
  // A larger vocabulary and one more block.
  TrainConfig config = Config(14);
  config.mutable_model()->mutable_gpt2()->set_n_layer(3);
  World other(3, 1, TestUse::kTrain, config);
  Fill(other, 9);
  const std::vector<std::string> patterns = {"transformer[.]h[.][01][.].*",
                                             ".*[.]wpe[.].*"};
  ASSERT_TRUE(
      Load(other, Step(4), {.weights_only = true, .parameters = patterns})
          .ok());
  for (int rank = 0; rank < 3; ++rank) {
    ShardWriter shards = other.Shards(rank);
    for (const HeldRange& held : shards.Held()) {
      const std::string& name = held.parameter->name;
      const bool loaded = absl::StartsWith(name, "transformer.h.0.") ||
                          absl::StartsWith(name, "transformer.h.1.") ||
                          name == "transformer.wpe.weight";
      std::vector<float> values(held.elements);
      ASSERT_TRUE(
          shards.Read(held, 0, absl::MakeSpan(values), ShardKind::kMaster)
              .ok());
      for (int64_t i = 0; i < held.elements; ++i) {
        ASSERT_EQ(values[i], Value(loaded ? 4 : 9, ShardKind::kMaster,
                                   *held.parameter, held.begin + i))
            << name;
      }
    }
  }
  const auto refused = [&](const std::string& pattern,
                           const std::string& message) {
    const absl::Status status =
        Load(other, Step(4), {.weights_only = true, .parameters = {pattern}});
    EXPECT_TRUE(absl::StrContains(status.message(), message)) << status;
  };
  refused("wte", "\"wte\", which matches no parameter; a whole name");
  refused("(", "which is no regular expression");
  refused(".*wte.*", "of shape [13, 12], but the model's is [14");
  refused(".*h[.]2[.].*", "no parameter transformer.h.2.");
}

// Each region of each file: flipped, cut off, missing, of another step.
TEST_F(CheckpointTest, NoDamageIsLoaded) {
  World run(3);
  for (int64_t step : {1, 2}) {
    Fill(run, step);
    ASSERT_TRUE(Save(run, folder_, step).ok());
  }
  World loaded(1);
  int cases = 0;
  const auto expect_named = [&](const std::string& name,
                                const std::string& what) {
    SCOPED_TRACE(absl::StrCat(name, ": ", what));
    ++cases;
    const auto damaged = LoadCheckpoint(Step(2), loaded.Rank(0));
    EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(absl::StrContains(damaged.status().message(), name))
        << damaged.status();
    const auto newest = LoadNewestCheckpoint(folder_, loaded.Rank(0), nullptr);
    ASSERT_TRUE(newest.ok()) << newest.status();
    ASSERT_TRUE(newest->has_value());
    EXPECT_EQ((*newest)->step(), 1);
  };
  for (const std::string& name : Names(Step(2))) {
    const std::string path = absl::StrCat(Step(2), "/", name);
    const std::string whole = *ReadWholeFile(path);
    const int64_t size = static_cast<int64_t>(whole.size());
    const auto with = [&](const std::string& text, const std::string& what) {
      std::ofstream(path, std::ios::binary) << text;
      expect_named(name, what);
    };
    std::set<int64_t> places = {0, 7, 8, size - 1};
    for (int64_t i = 1; i < 9; ++i) places.insert(i * (size - 1) / 9);
    for (int64_t at : places) {
      std::string text = whole;
      text[at] = static_cast<char>(text[at] ^ 0x04);
      with(text, absl::StrCat("byte ", at, " of ", size));
    }
    for (int64_t left : {int64_t{0}, int64_t{7}, size / 2, size - 1})
      with(whole.substr(0, left), absl::StrCat("cut off at ", left));
    with(whole + "x", "a byte more");
    const std::string other = *ReadWholeFile(absl::StrCat(Step(1), "/", name));
    ASSERT_NE(other, whole);
    with(other, "of another step");
    fs::remove(path);
    if (name != kManifestName) expect_named(name, "missing");
    std::ofstream(path, std::ios::binary) << whole;
    ASSERT_TRUE(LoadCheckpoint(Step(2), loaded.Rank(0)).ok());
  }
  EXPECT_GT(cases, 100);
  // A whole folder under another name.
  fs::rename(Step(1), Step(3));
  const auto renamed = LoadCheckpoint(Step(3), loaded.Rank(0));
  EXPECT_TRUE(absl::StrContains(renamed.status().message(), "it is of step 1"))
      << renamed.status();
  // Without a manifest: incomplete.
  fs::create_directories(Step(4));
  EXPECT_EQ(ListIncomplete(folder_), std::vector<std::string>{Step(4)});
  const auto newest = LoadNewestCheckpoint(folder_, loaded.Rank(0), nullptr);
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ((*newest)->step(), 2);
}

TEST_F(CheckpointTest, ManifestsAreChecked) {
  World run(1);
  ASSERT_TRUE(Save(run, folder_, 4).ok());
  const std::string path = Step(4) + "/manifest.textproto";
  const auto good = ReadCheckpointManifest(Step(4));
  ASSERT_TRUE(good.ok());
  const auto refused = [&](const std::string& message, auto change) {
    CheckpointManifest manifest = *good;
    change(manifest);
    ASSERT_TRUE(WriteManifest(path, manifest).ok());
    const auto read = ReadCheckpointManifest(Step(4));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(absl::StrContains(read.status().message(), message))
        << read.status();
  };
  const auto piece = [](CheckpointManifest& manifest) {
    return manifest.mutable_tensors(0)->mutable_pieces(0);
  };
  refused("its version is 1", [](auto& m) { m.set_version(1); });
  refused("chunk_bytes is 0", [](auto& m) { m.set_chunk_bytes(0); });
  refused("unknown dtype F31",
          [](auto& m) { m.mutable_tensors(0)->set_dtype("F31"); });
  refused("there is no file", [&](auto& m) { piece(m)->set_file(99); });
  refused("does not lie inside", [&](auto& m) { piece(m)->set_offset(0, -1); });
  refused("does not lie inside",
          [&](auto& m) { piece(m)->set_size(0, INT64_MAX); });
  refused("does not lie inside", [&](auto& m) { piece(m)->add_size(1); });
  refused("checksums for", [&](auto& m) { piece(m)->add_crc32c(1); });
  refused("its pieces hold 0 elements",
          [](auto& m) { m.mutable_tensors(0)->clear_pieces(); });
  ASSERT_TRUE(WriteManifest(path, *good).ok());
  EXPECT_TRUE(ReadCheckpointManifest(Step(4)).ok());
}

}  // namespace
}  // namespace shardgraph
