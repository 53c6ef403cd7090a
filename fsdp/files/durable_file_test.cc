#include "fsdp/files/durable_file.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using Cache = DurableFile::Cache;

constexpr int64_t kMiB = 1 << 20;

std::string Bytes(int64_t count) {
  std::string bytes(count, 0);
  for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * i >> 7);
  return bytes;
}

class DurableFileTest : public ::testing::TestWithParam<const char*> {
 protected:
  DurableFileTest()
      : folder_(absl::StrCat(GetParam() == std::string("disk")
                                 ? ::testing::TempDir()
                                 : std::string(GetParam()),
                             "/durable_file_test_", getpid())),
        path_(folder_ + "/file") {
    std::filesystem::create_directory(folder_);
  }
  ~DurableFileTest() override { std::filesystem::remove_all(folder_); }

  void ExpectOnly(const std::string& content) const {
    const auto read = ReadWholeFile(path_);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == content) << read->size() << " bytes";
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_),
                            std::filesystem::directory_iterator()),
              1);
  }

  const std::string folder_, path_;
};

TEST_P(DurableFileTest, HoldsWhatWasAppended) {
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{4096},
                             2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 4097}) {
    for (const int64_t piece : {int64_t{70001}, 3 * kMiB}) {
      SCOPED_TRACE(absl::StrCat(size, " bytes by ", piece));
      const std::string bytes = Bytes(size);
      auto file = DurableFile::Create(path_, Cache::kBypassed);
      ASSERT_TRUE(file.ok()) << file.status();
      for (int64_t at = 0; at < size; at += piece)
        ASSERT_TRUE((*file)->Append(bytes.substr(at, piece)).ok());
      ASSERT_TRUE((*file)->Commit().ok());
      ExpectOnly(bytes);
    }
  }
}

// Memory on a page goes to the disk from where it is, when whole pages stand
// before it.
TEST_P(DurableFileTest, HoldsPagesAmongOthers) {
  constexpr int64_t kPage = DurableFile::kPage;
  const int64_t size = 9 * kMiB;
  const std::unique_ptr<char, void (*)(void*)> memory(
      static_cast<char*>(std::aligned_alloc(kPage, size)), std::free);
  const std::string bytes = Bytes(size);
  std::memcpy(memory.get(), bytes.data(), size);
  for (const std::vector<int64_t>& ends :
       std::vector<std::vector<int64_t>>{{size},
                                         {kPage, 5 * kMiB, size},
                                         {3 * kPage, 3 * kPage + 17, size},
                                         {5, kPage, 7 * kMiB + 3}}) {
    SCOPED_TRACE(absl::StrCat(ends.size(), " pieces"));
    auto file = DurableFile::Create(path_, Cache::kBypassed);
    ASSERT_TRUE(file.ok()) << file.status();
    int64_t begin = 0;
    for (const int64_t end : ends) {
      ASSERT_TRUE(
          (*file)
              ->Append({memory.get() + begin, static_cast<size_t>(end - begin)})
              .ok());
      begin = end;
    }
    ASSERT_TRUE((*file)->Commit().ok());
    ExpectOnly(bytes.substr(0, begin));
  }
}

TEST_P(DurableFileTest, TakesWhatReplacesBytes) {
  std::string bytes = Bytes(3 * kMiB);
  auto file = DurableFile::Create(path_, Cache::kBypassed);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(bytes).ok());
  ASSERT_TRUE((*file)->WriteAt(5, "in between").ok());
  ASSERT_TRUE((*file)->Append("at the end").ok());
  ASSERT_TRUE((*file)->Commit().ok());
  ExpectOnly(bytes.replace(5, 10, "in between") + "at the end");
}

// The file that was there stays, and nothing else.
TEST_P(DurableFileTest, FailuresLeaveWhatWasThere) {
  ASSERT_TRUE(WriteDurableFile(path_, "old").ok());
  const auto signal = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const int64_t most : {2 * kMiB + 1000, kMiB + 1000}) {
    rlimit limit = before;
    limit.rlim_cur = most;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    {
      auto file = DurableFile::Create(path_, Cache::kBypassed);
      ASSERT_TRUE(file.ok()) << file.status();
      absl::Status status = (*file)->Append(Bytes(2 * kMiB + 2000));
      if (status.ok()) status = (*file)->Commit();
      EXPECT_EQ(status.message(),
                absl::StrCat("cannot write ", path_, ": File too large"));
    }
    ExpectOnly("old");
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, signal);
}

// A disk, and memory, whose cache cannot be bypassed everywhere.
INSTANTIATE_TEST_SUITE_P(Folders, DurableFileTest,
                         ::testing::Values("disk", "/dev/shm"),
                         [](const auto& info) {
                           return info.index == 0 ? "Disk" : "Memory";
                         });

}  // namespace
}  // namespace shardgraph
