// What is damaged, missing or only half there: named, and never loaded.
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/checkpoint_folder.h"
#include "fsdp/checkpoint/filled_world.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/files/durable_file.h"
#include "gtest/gtest.h"
#include "kernels/collective/store.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

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
