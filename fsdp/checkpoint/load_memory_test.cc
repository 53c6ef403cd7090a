// What loading holds beyond the rank's own memory: every byte that is allocated
// meanwhile, and every page of the files that is mapped in.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/filled_world.h"
#include "fsdp/checkpoint/huggingface.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/safetensors.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/testing/allocations.h"

namespace shardgraph {
namespace {

constexpr int64_t kMiB = 1 << 20;
// The largest table of 5.5 MiB, of which four ranks write a piece each.
constexpr int64_t kVocab = 120000;
// Of a piece that is larger, so much is in memory: a checksum's bytes.
constexpr int64_t kChunk = 4 * kMiB;

// Bytes of pages of the folder's files that this process has mapped in. Of the
// kernel's tables only what belongs to the files is read: /proc/self/smaps,
// which says the same, walks a sanitizer's terabytes each time.
int64_t MappedIn(const std::string& path) {
  // As the kernel writes it.
  const std::string folder = std::filesystem::canonical(path).string();
  const uint64_t page = sysconf(_SC_PAGESIZE);
  std::ifstream maps("/proc/self/maps");
  const int pages = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  SG_CHECK(pages >= 0);
  int64_t present = 0;
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    if (!absl::StrContains(line, folder) ||
        std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2)
      continue;
    // One word a page; its highest bit: present.
    std::vector<uint64_t> words((end - begin) / page);
    const size_t bytes = words.size() * sizeof(uint64_t);
    SG_CHECK_EQ(static_cast<size_t>(pread(pages, words.data(), bytes,
                                          begin / page * sizeof(uint64_t))),
                bytes);
    for (const uint64_t word : words) present += word >> 63;
  }
  close(pages);
  return present * page;
}

// The shards of a rank; looks at memory whenever something is written to them.
class WatchedExecutor : public HostExecutor {
 public:
  explicit WatchedExecutor(std::function<void()> look)
      : look_(std::move(look)) {}

  absl::Status WriteBuffer(BufferId buffer, int64_t offset, const void* host,
                           int64_t bytes) override {
    look_();
    return HostExecutor::WriteBuffer(buffer, offset, host, bytes);
  }

 private:
  const std::function<void()> look_;
};

class LoadMemoryTest : public CheckpointTest {
 protected:
  // What `load` of one rank holds at most beyond its shards, which it writes to
  // the executor that it gets.
  int64_t Held(World& world, int rank,
               const std::function<absl::Status(Executor&)>& load) {
    int64_t mapped = 0;
    WatchedExecutor executor(
        [&] { mapped = std::max(mapped, MappedIn(folder_)); });
    executor.buffers.swap(world.executors[rank].buffers);
    ForgetMostLiveBytes();
    const int64_t before = LiveBytes();
    const absl::Status status = load(executor);
    EXPECT_TRUE(status.ok()) << status;
    const int64_t allocated = MostLiveBytes() - before;
    executor.buffers.swap(world.executors[rank].buffers);
    return allocated + mapped;
  }
};

int64_t LargestPiece(const CheckpointManifest& manifest) {
  int64_t largest = 0;
  for (const CheckpointTensor& tensor : manifest.tensors()) {
    for (const CheckpointPiece& piece : tensor.pieces())
      largest = std::max(largest, BoxOf(piece).numel() * 4);
  }
  return largest;
}

TEST_F(LoadMemoryTest, SeesPagesThatAreMapped) {
  std::filesystem::create_directories(folder_);
  const std::string path = folder_ + "/file";
  std::ofstream(path) << std::string(2 * kMiB, 'x');
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const memory = mmap(nullptr, 2 * kMiB, PROT_READ, MAP_PRIVATE, file, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EQ(MappedIn(folder_), 0);
  EXPECT_EQ(static_cast<const volatile char*>(memory)[kMiB], 'x');
  const int64_t mapped = MappedIn(folder_);
  EXPECT_GT(mapped, 0);
  EXPECT_LE(mapped, 2 * kMiB);
  munmap(memory, 2 * kMiB);
  close(file);
}

TEST_F(LoadMemoryTest, OnePieceOfACheckpointAtMost) {
  const TrainConfig config = Config(kVocab);
  const struct {
    int shards, replicas;
  } loads[] = {{3, 1}, {1, 2}, {2, 2}};  // full, not sharded, hybrid
  for (const int from : {4, 1}) {
    World saved(from, 1, TestUse::kTrain, config);
    Fill(saved, 5);
    ASSERT_TRUE(Save(saved, folder_, 5).ok());
    const auto manifest = ReadCheckpointManifest(Step(5));
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    const int64_t largest = LargestPiece(*manifest);
    ASSERT_EQ(largest > kChunk, from == 1);
    for (const auto& c : loads) {
      SCOPED_TRACE(absl::StrCat(from, " to ", c.shards, " x ", c.replicas));
      World loaded(c.shards, c.replicas, TestUse::kTrain, config);
      for (int rank = 0; rank < c.shards; ++rank) {
        const int64_t held = Held(loaded, rank, [&](Executor& executor) {
          CheckpointRank here = loaded.Rank(rank);
          here.executor = &executor;
          return LoadCheckpoint(Step(5), here).status();
        });
        // Room to widen and round in, the manifest, ends of pages.
        EXPECT_LE(held, std::min(largest, kChunk) + kMiB)
            << "the largest piece has " << largest;
      }
      const HeldRange last = loaded.Shards(0).Held().back();
      std::vector<float> value(1);
      ASSERT_TRUE(loaded.Shards(0)
                      .Read(last, 0, absl::MakeSpan(value), ShardKind::kExpAvg)
                      .ok());
      EXPECT_EQ(value[0],
                Value(5, ShardKind::kExpAvg, *last.parameter, last.begin));
    }
  }
}

TEST_F(LoadMemoryTest, LessThanTwoMiBForAHuggingFaceFolder) {
  const TrainConfig config = Config(kVocab);
  World world(3, 1, TestUse::kTrain, config);
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const Parameter* parameter : world.plan->model->parameters())
    tensors.push_back({parameter->name, DType::kF32, parameter->shape});
  std::filesystem::create_directories(folder_);
  auto writer =
      SafetensorsWriter::Create(folder_ + "/model.safetensors", tensors, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const SafetensorsEntry& entry : (*writer)->entries()) {
    ASSERT_TRUE(
        (*writer)->Append(std::string(entry.end - entry.begin, 'x')).ok());
  }
  ASSERT_TRUE((*writer)->Close().ok());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_LE(Held(world, rank,
                   [&](Executor& executor) {
                     return LoadHuggingFaceWeights(folder_, *world.plan, rank,
                                                   executor);
                   }),
              2 * kMiB);
  }
}

}  // namespace
}  // namespace shardgraph
