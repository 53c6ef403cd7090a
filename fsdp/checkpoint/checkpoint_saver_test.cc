#include "fsdp/checkpoint/checkpoint_saver.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/test_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

TrainConfig Config() {
  TrainConfig config;
  Gpt2Spec* model = config.mutable_model()->mutable_gpt2();
  model->set_vocab_size(13);
  model->set_n_positions(9);
  model->set_n_embd(12);
  model->set_n_head(2);
  model->set_n_layer(1);
  CheckpointSpec* checkpoint = config.mutable_checkpoint();
  checkpoint->set_asynchronous(true);
  checkpoint->set_timeout_seconds(100);
  checkpoint->set_stall_seconds(10);
  return config;
}

// Ranks as threads that meet.
class Job {
 public:
  Job(int shards, int replicas, TrainConfig config)
      : world(shards, replicas, TestUse::kTrain, std::move(config)),
        folder(absl::StrCat(
            testing::TempDir(), "/",
            testing::UnitTest::GetInstance()->current_test_info()->name())),
        said(size()),
        barrier_(size()),
        numbers_(size()) {
    fs::remove_all(folder);
  }

  int size() const { return static_cast<int>(world.executors.size()); }

  CheckpointSaverOptions Options(int rank) {
    CheckpointSaverOptions options;
    options.rank = world.Rank(rank);
    options.folder = folder;
    options.now = [this] { return absl::FromUnixSeconds(seconds); };
    options.say = [this, rank](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      said[rank].push_back(line);
    };
    if (size() == 1) return options;
    options.store = &store_;
    options.max = [this, rank](int64_t mine) -> absl::StatusOr<int64_t> {
      numbers_[rank] = mine;
      barrier_.arrive_and_wait();
      const int64_t all = *std::max_element(numbers_.begin(), numbers_.end());
      barrier_.arrive_and_wait();
      return all;
    };
    return options;
  }

  // Runs `rank(r)` for all ranks at once.
  void Run(const std::function<void(int)>& rank) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size(); ++r) threads.emplace_back(rank, r);
    for (std::thread& thread : threads) thread.join();
  }

  // What step `step` leaves in the shards of a rank.
  void Train(int rank, int64_t step) {
    for (const UnitBuffers& unit : world.plan->units) {
      for (const BufferId id : {unit.master, unit.exp_avg, unit.exp_avg_sq}) {
        std::vector<char>& buffer = world.executors[rank].buffers[id];
        for (size_t i = 0; i < buffer.size(); i += sizeof(float)) {
          const float value = static_cast<float>(step * 1000 + id);
          std::memcpy(&buffer[i], &value, sizeof(value));
        }
      }
    }
  }

  // The checkpoint holds what Train left after `step`.
  void ExpectSaved(int64_t step) {
    TestWorld loaded(1, 1, TestUse::kTrain, Config());
    const auto manifest = LoadCheckpoint(
        absl::StrCat(folder, "/", CheckpointName(step)), loaded.Rank(0));
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    for (const HeldRange& held : loaded.Shards(0).Held()) {
      std::vector<float> values(held.elements);
      for (ShardKind kind : {ShardKind::kMaster, ShardKind::kExpAvgSq}) {
        ASSERT_TRUE(
            loaded.Shards(0).Read(held, 0, absl::MakeSpan(values), kind).ok());
        const UnitBuffers& unit = world.plan->units[held.unit];
        const BufferId id =
            kind == ShardKind::kMaster ? unit.master : unit.exp_avg_sq;
        for (float value : values)
          ASSERT_EQ(value, static_cast<float>(step * 1000 + id));
      }
    }
  }

  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    for (const CheckpointFolder& found : ListCheckpoints(folder))
      steps.insert(steps.begin(), found.step);
    return steps;
  }

  TestWorld world;
  const std::string folder;
  std::vector<std::vector<std::string>> said;  // by rank
  std::atomic<int64_t> seconds{0};             // on the clock

 private:
  InProcessStore store_;
  std::barrier<> barrier_;
  std::vector<int64_t> numbers_;
  std::mutex mutex_;
};

// A disk that does not answer until it is released.
class SlowDisk {
 public:
  std::function<absl::StatusOr<int64_t>(const std::string&)> Hook() {
    return [this](const std::string&) -> absl::StatusOr<int64_t> {
      if (!arrived_.try_wait()) arrived_.count_down();
      released_.wait();
      return INT64_MAX;
    };
  }
  // Until somebody waits for it.
  void WaitUntilAsked() { arrived_.wait(); }
  void Release() { released_.count_down(); }

 private:
  std::latch arrived_{1}, released_{1};
};

TEST(CheckpointSaverTest, SavesTheStateOfTheBoundary) {
  for (const int replicas : {1, 2}) {
    Job job(2, replicas, Config());
    SlowDisk disk;
    job.Run([&](int rank) {
      CheckpointSaverOptions options = job.Options(rank);
      if (rank == 1) options.free_bytes = disk.Hook();
      CheckpointSaver saver(std::move(options));
      job.Train(rank, 10);
      ASSERT_TRUE(saver.Save(10).ok());
      // Goes on, although nothing can be on the disk yet.
      job.Train(rank, 11);
      EXPECT_THAT(job.Steps(), IsEmpty());
      saver.Look();
      if (rank == 1) disk.Release();
      job.Train(rank, 20);
      EXPECT_TRUE(saver.SaveAndWait(20).ok());
    });
    EXPECT_EQ(job.Steps(), (std::vector<int64_t>{10, 20}));
    job.ExpectSaved(10);
    job.ExpectSaved(20);
    for (const auto& lines : job.said) EXPECT_THAT(lines, IsEmpty());
  }
}

TEST(CheckpointSaverTest, WaitsForTheSaveBefore) {
  Job job(2, 1, Config());
  SlowDisk disk;
  std::atomic<bool> released{false};
  job.Run([&](int rank) {
    CheckpointSaverOptions options = job.Options(rank);
    if (rank == 1) options.free_bytes = disk.Hook();
    CheckpointSaver saver(std::move(options));
    ASSERT_TRUE(saver.Save(10).ok());
    std::thread later;
    if (rank == 1) {
      later = std::thread([&] {
        released = true;
        disk.Release();
      });
    }
    ASSERT_TRUE(saver.Save(20).ok());
    EXPECT_TRUE(released);
    if (later.joinable()) later.join();
    EXPECT_TRUE(saver.SaveAndWait(30).ok());
  });
  EXPECT_EQ(job.Steps(), (std::vector<int64_t>{10, 20, 30}));
}

TEST(CheckpointSaverTest, AStallRaisesAnAlarmAndBlocksNobody) {
  Job job(3, 1, Config());
  SlowDisk disk;
  job.Run([&](int rank) {
    CheckpointSaverOptions options = job.Options(rank);
    const auto meet = options.max;
    if (rank == 1) options.free_bytes = disk.Hook();
    CheckpointSaver saver(std::move(options));
    ASSERT_TRUE(saver.Save(10).ok());
    if (rank == 1) disk.WaitUntilAsked();
    saver.Look();
    ASSERT_TRUE(meet(0).ok());
    if (rank == 0) job.seconds += 11;
    ASSERT_TRUE(meet(0).ok());
    saver.Look();
    saver.Look();                      // once is enough
    ASSERT_TRUE(saver.Save(20).ok());  // left out, on all ranks
    if (rank == 1) disk.Release();
    EXPECT_TRUE(saver.SaveAndWait(30).ok());
  });
  EXPECT_EQ(job.Steps(), (std::vector<int64_t>{10, 30}));
  EXPECT_THAT(job.said[1],
              Contains(AllOf(HasSubstr("ALARM: rank 1: saving after step 10 "
                                       "has stood still for 11s"),
                             HasSubstr(job.folder)))
                  .Times(1));
  EXPECT_THAT(job.said[0],
              Contains(HasSubstr("the checkpoint after step 20 is left out")));
}

TEST(CheckpointSaverTest, FailuresAreSaidAndForgotten) {
  Job job(2, 1, Config());
  fs::create_directories(fs::path(job.folder).parent_path());
  std::atomic<bool> full{true};
  job.Run([&](int rank) {
    CheckpointSaverOptions options = job.Options(rank);
    const auto meet = options.max;
    options.free_bytes =
        [&full](const std::string&) -> absl::StatusOr<int64_t> {
      return full ? int64_t{0} : INT64_MAX;
    };
    CheckpointSaver saver(std::move(options));
    ASSERT_TRUE(saver.Save(10).ok());
    // The last one is an error: there will be no other.
    const absl::Status last = saver.SaveAndWait(20);
    EXPECT_FALSE(last.ok());
    EXPECT_THAT(std::string(last.message()), HasSubstr("0.0 MB free"));
    ASSERT_TRUE(meet(0).ok());
    full = false;
    ASSERT_TRUE(meet(0).ok());
    // A file where the folder should be: it cannot be made.
    if (rank == 0) {
      fs::remove_all(job.folder);
      std::ofstream(job.folder) << "x";
    }
    ASSERT_TRUE(meet(0).ok());
    ASSERT_TRUE(saver.Save(30).ok());
    EXPECT_FALSE(saver.SaveAndWait(40).ok());
    if (rank == 0) fs::remove(job.folder);
    ASSERT_TRUE(meet(0).ok());
    job.Train(rank, 50);
    EXPECT_TRUE(saver.SaveAndWait(50).ok());
  });
  for (const auto& lines : job.said) {
    EXPECT_THAT(lines, Contains(AllOf(HasSubstr("after step 10 is not saved"),
                                      HasSubstr("MB free"),
                                      HasSubstr("training goes on"))));
    EXPECT_THAT(lines, Contains(AllOf(HasSubstr("after step 30 is not saved"),
                                      HasSubstr(job.folder))));
  }
  EXPECT_EQ(job.Steps(), std::vector<int64_t>{50});
  job.ExpectSaved(50);
  for (const auto& entry : fs::directory_iterator(job.folder))
    EXPECT_EQ(entry.path().filename(), "step_0000050");
}

TEST(CheckpointSaverTest, FailsOnAllRanksWhenItFailsOnOne) {
  Job job(3, 1, Config());
  job.Run([&](int rank) {
    CheckpointSaverOptions options = job.Options(rank);
    if (rank == 2) {
      options.free_bytes = [](const std::string&) -> absl::StatusOr<int64_t> {
        return absl::UnavailableError("no such disk");
      };
    }
    CheckpointSaver saver(std::move(options));
    const absl::Status last = saver.SaveAndWait(20);
    EXPECT_FALSE(last.ok());
    EXPECT_THAT(std::string(last.message()),
                rank == 0   ? HasSubstr("rank 2: no such disk")
                : rank == 1 ? HasSubstr("the log of another rank says why")
                            : HasSubstr("no such disk"));
  });
  EXPECT_THAT(job.Steps(), IsEmpty());
}

TEST(CheckpointSaverTest, ALateSaveEndsTheLastWait) {
  Job job(2, 1, Config());
  SlowDisk disk;
  job.Run([&](int rank) {
    CheckpointSaverOptions options = job.Options(rank);
    const auto meet = options.max;
    if (rank == 1) options.free_bytes = disk.Hook();
    CheckpointSaver saver(std::move(options));
    ASSERT_TRUE(saver.Save(10).ok());
    ASSERT_TRUE(meet(0).ok());
    if (rank == 0) job.seconds += 111;
    ASSERT_TRUE(meet(0).ok());
    const absl::Status late = saver.SaveAndWait(20);
    EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
    if (rank == 1) {
      EXPECT_THAT(std::string(late.message()),
                  HasSubstr("rank 1: saving after step 10 is not done within"));
      EXPECT_FALSE(saver.Cancel(absl::ZeroDuration()));
    } else {
      // Waits for the part of rank 1 only.
      EXPECT_TRUE(saver.Cancel(absl::InfiniteDuration()));
    }
    ASSERT_TRUE(meet(0).ok());
    if (rank == 1) disk.Release();
  });
  EXPECT_THAT(job.Steps(), IsEmpty());
}

TEST(CheckpointSaverTest, WithoutACopyItWaits) {
  TrainConfig config = Config();
  config.mutable_checkpoint()->set_asynchronous(false);
  Job job(2, 2, config);
  EXPECT_EQ(job.world.plan->snapshot_bytes, 0);
  job.Run([&](int rank) {
    CheckpointSaver saver(job.Options(rank));
    job.Train(rank, 10);
    ASSERT_TRUE(saver.Save(10).ok());
    EXPECT_EQ(job.Steps(), std::vector<int64_t>{10});
    job.Train(rank, 20);
    EXPECT_TRUE(saver.SaveAndWait(20).ok());
  });
  job.ExpectSaved(10);
  job.ExpectSaved(20);
}

TEST(CheckpointSaverTest, OneRankAlone) {
  TrainConfig config = Config();
  config.mutable_checkpoint()->set_write_mb_per_second(1000);
  Job job(1, 1, config);
  CheckpointSaver saver(job.Options(0));
  for (int64_t step : {1, 2, 3}) {
    job.Train(0, step);
    ASSERT_TRUE(saver.Save(step).ok());
  }
  job.Train(0, 4);
  EXPECT_TRUE(saver.SaveAndWait(4).ok());
  EXPECT_EQ(job.Steps(), (std::vector<int64_t>{1, 2, 3, 4}));
  for (int64_t step : {1, 2, 3, 4}) job.ExpectSaved(step);
}

TEST(SaveProgressTest, HoldsToItsRateAndGrows) {
  SaveProgress progress(1e6);
  const absl::Time begin = absl::Now();
  progress.Begin();
  const int64_t before = progress.advance();
  EXPECT_TRUE(progress.Wrote(3000).ok());
  EXPECT_TRUE(progress.Wrote(2000).ok());
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(5));
  EXPECT_GT(progress.advance(), before);
  EXPECT_EQ(progress.bytes_written(), 5000);
  std::thread other([&] { progress.Cancel(); });
  EXPECT_TRUE(absl::IsCancelled(progress.Pause(absl::InfiniteDuration())));
  other.join();
  EXPECT_TRUE(absl::IsCancelled(progress.Wrote(1)));
}

}  // namespace
}  // namespace shardgraph
