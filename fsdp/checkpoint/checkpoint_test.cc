#include "fsdp/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/checkpoint_folder.h"
#include "fsdp/checkpoint/filled_world.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/checkpoint/snapshot.h"
#include "fsdp/files/durable_file.h"
#include "gtest/gtest.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

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

// Through a copy in memory come the same bytes, whatever the shards hold when
// it is written; and copy after copy.
TEST_F(CheckpointTest, SnapshotsAreWrittenAsTheShardsAre) {
  for (const auto& [ranks, vocab, use] :
       {std::tuple{1, 90000, TestUse::kMomentum},  // several chunks
        {3, 13, TestUse::kTrain},
        {16, 13, TestUse::kMomentum},    // ranks that hold nothing
        {2, 13, TestUse::kGenerate}}) {  // BF16
    SCOPED_TRACE(absl::StrCat(ranks, " ranks"));
    TrainConfig config = Config(vocab);
    config.mutable_checkpoint()->set_asynchronous(true);
    World saved(ranks, 1, use, config);
    std::vector<std::unique_ptr<Snapshot>> snapshots;
    for (int rank = 0; rank < ranks; ++rank) {
      saved.executors[rank].in_place = ranks > 1;
      snapshots.push_back(std::make_unique<Snapshot>(*saved.plan, rank));
    }
    for (int step = 7; step < (vocab > 13 ? 8 : 9); ++step) {
      Fill(saved, step);
      ASSERT_TRUE(Save(saved, folder_, step).ok());
      for (int rank = 0; rank < ranks; ++rank)
        ASSERT_TRUE(snapshots[rank]->Take(saved.executors[rank]).ok());
      for (HostExecutor& executor : saved.executors) {
        for (std::vector<char>& buffer : executor.buffers)
          std::fill(buffer.begin(), buffer.end(), 1);
      }
      ASSERT_TRUE(Save(saved, folder_ + "/copy", step, {}, snapshots).ok());
      const std::string copy =
          absl::StrCat(folder_, "/copy/", CheckpointName(step));
      EXPECT_EQ(Names(copy), Names(Step(step)));
      for (const std::string& name : Names(Step(step))) {
        const auto direct = ReadWholeFile(absl::StrCat(Step(step), "/", name));
        const auto through = ReadWholeFile(absl::StrCat(copy, "/", name));
        ASSERT_TRUE(direct.ok() && through.ok()) << name;
        EXPECT_TRUE(*direct == *through) << name;
      }
    }
    fs::remove_all(folder_);
  }
}

TEST_F(CheckpointTest, DataBeginOnAPage) {
  World saved(3);
  Fill(saved, 8);
  ASSERT_TRUE(Save(saved, folder_, 8).ok());
  for (const std::string& name : Names(Step(8))) {
    if (name == "manifest.textproto") continue;
    const auto file = SafetensorsFile::Open(absl::StrCat(Step(8), "/", name));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Header().size() % DurableFile::kPage, 0u) << name;
  }
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
  config = Config();
  config.mutable_data()->set_mask_documents(true);
  refused(config, "set data.mask_documents=false");
  config = Config();
  config.mutable_data()->add_sources()->set_weight(7);
  config.mutable_data()->add_sources()->set_weight(2.5);
  refused(config, "data.sources have weights [7, 2.5]");
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

}  // namespace
}  // namespace shardgraph
