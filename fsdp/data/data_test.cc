#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "fsdp/data/batches.h"
#include "fsdp/data/token_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/testing/allocations.h"

namespace shardgraph {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

void WriteBytes(const std::string& path, const void* data, size_t bytes) {
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(data), bytes);
}

// Tokens first, first + 1, ... in a file of our own format.
std::string Counting(const std::string& name, int count, uint16_t first = 0) {
  const auto writer = TokenFileWriter::Create(Path(name));
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (int i = 0; i < count; ++i) {
    const uint16_t token = static_cast<uint16_t>(first + i);
    EXPECT_TRUE((*writer)->Append({&token, 1}).ok());
  }
  EXPECT_TRUE((*writer)->Close().ok());
  return Path(name);
}

TEST(TokenFile, ReadsAllFormats) {
  std::vector<int32_t> tokens(3);
  const auto own = TokenFile::Open(Counting("own.bin", 5, 7));
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ((*own)->size(), 5);
  ASSERT_TRUE((*own)->Read(2, 100, absl::MakeSpan(tokens)).ok());
  EXPECT_EQ(tokens, (std::vector<int32_t>{9, 10, 11}));

  std::vector<int32_t> llama(256 + 4, 0);
  llama[0] = 20240801, llama[1] = 7, llama[2] = 4;
  for (int i = 0; i < 4; ++i) llama[256 + i] = 100000 + i;
  WriteBytes(Path("llama.bin"), llama.data(), llama.size() * 4);
  const auto llama_file = TokenFile::Open(Path("llama.bin"));
  ASSERT_TRUE(llama_file.ok()) << llama_file.status();
  ASSERT_TRUE((*llama_file)->Read(1, 128256, absl::MakeSpan(tokens)).ok());
  EXPECT_EQ(tokens, (std::vector<int32_t>{100001, 100002, 100003}));

  const uint16_t raw[] = {5, 6, 7, 65535};
  WriteBytes(Path("nano.bin"), raw, sizeof(raw));
  const auto nano = TokenFile::Open(Path("nano.bin"));
  ASSERT_TRUE(nano.ok()) << nano.status();
  EXPECT_EQ((*nano)->size(), 4);
}

TEST(TokenFile, SaysWhatIsWrong) {
  const auto error = [](const std::string& path) {
    return std::string(TokenFile::Open(path).status().message());
  };
  EXPECT_THAT(error(Path("missing.bin")), HasSubstr("No such file"));
  EXPECT_THAT(error(::testing::TempDir()), HasSubstr("not a regular file"));
  WriteBytes(Path("empty.bin"), "", 0);
  EXPECT_THAT(error(Path("empty.bin")), HasSubstr("empty"));
  WriteBytes(Path("odd.bin"), "abc", 3);
  EXPECT_THAT(error(Path("odd.bin")), HasSubstr("tools:prepare"));
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 10;
  WriteBytes(Path("truncated.bin"), header.data(), header.size() * 4);
  EXPECT_THAT(error(Path("truncated.bin")),
              HasSubstr("truncated: its header says 10 tokens"));
  header[1] = 3;
  WriteBytes(Path("version.bin"), header.data(), header.size() * 4);
  EXPECT_THAT(error(Path("version.bin")), HasSubstr("version 3"));

  const auto file = TokenFile::Open(Counting("range.bin", 5, 254));
  std::vector<int32_t> tokens(5);
  EXPECT_THAT(
      std::string((*file)->Read(0, 256, absl::MakeSpan(tokens)).message()),
      testing::AllOf(HasSubstr("token 256 at position 2"),
                     HasSubstr("vocabulary of 256"),
                     HasSubstr("at least 257")));
  EXPECT_FALSE((*file)->Read(1, 1000, absl::MakeSpan(tokens)).ok());
}

TEST(TokenFileWriter, LeavesNothingWhenItIsNotClosed) {
  { ASSERT_TRUE(TokenFileWriter::Create(Path("half.bin")).ok()); }
  EXPECT_FALSE(std::ifstream(Path("half.bin")).good());
  EXPECT_FALSE(std::ifstream(Path("half.bin.tmp")).good());
}

TEST(Permute, IsABijectionThatDependsOnSeedAndEpoch) {
  for (int64_t n : {1, 2, 3, 64, 1000, 4097}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < n; ++i) seen.insert(Permute(i, n, 1, 0));
    EXPECT_EQ(static_cast<int64_t>(seen.size()), n);
    EXPECT_EQ(*seen.rbegin(), n - 1);
  }
  int moved_by_seed = 0, moved_by_epoch = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    moved_by_seed += Permute(i, 1000, 1, 0) != Permute(i, 1000, 2, 0);
    moved_by_epoch += Permute(i, 1000, 1, 0) != Permute(i, 1000, 1, 1);
  }
  EXPECT_GT(moved_by_seed, 950);
  EXPECT_GT(moved_by_epoch, 950);
}

class BatchesTest : public ::testing::Test {
 protected:
  // 41 tokens in sequences of 4: 10 whole ones.
  BatchesTest()
      : data_(*TokenData::Open(Counting("batches.bin", 41), "", 4, 1000)) {}

  std::unique_ptr<TokenData> data_;
};

TEST_F(BatchesTest, TargetsAreTheTokensBehind) {
  EXPECT_EQ(data_->whole_sequences(), 10);
  std::vector<int32_t> tokens(4), targets(4);
  ASSERT_TRUE(data_->Get(9, false, tokens.data(), targets.data()).ok());
  EXPECT_EQ(tokens, (std::vector<int32_t>{36, 37, 38, 39}));
  EXPECT_EQ(targets, (std::vector<int32_t>{37, 38, 39, 40}));
}

TEST_F(BatchesTest, AnEpochShowsEverySequenceOnceWhateverTheWorld) {
  for (int world : {1, 2, 3}) {
    std::multiset<int32_t> firsts;
    for (int64_t step = 0; step < 2; ++step) {
      for (int rank = 0; rank < world; ++rank) {
        for (int64_t micro = 0; micro * world * 2 < 5; ++micro) {
          Batch batch;
          ASSERT_TRUE(
              TrainingBatch(*data_, {5, 2, world, rank}, 3, step, micro, &batch)
                  .ok());
          for (int b = 0; b < 2; ++b) {
            if (batch.targets[b * 4] != kIgnoredTarget)
              firsts.insert(batch.tokens[b * 4]);
          }
        }
      }
    }
    EXPECT_EQ(firsts,
              (std::multiset<int32_t>{0, 4, 8, 12, 16, 20, 24, 28, 32, 36}))
        << "world " << world;
  }
}

TEST_F(BatchesTest, BatchesAfterTheFirstAllocateNothing) {
  Batch batch;
  int64_t before = 0;
  for (int step = 0; step < 5; ++step) {
    if (step == 1) before = NumAllocations();
    ASSERT_TRUE(TrainingBatch(*data_, {5, 4, 1, 0}, 3, step, 0, &batch).ok());
    ASSERT_TRUE(EvaluationBatch(*data_, {5, 4, 1, 0}, 8, step, &batch).ok());
  }
  EXPECT_EQ(NumAllocations() - before, 0);
}

TEST_F(BatchesTest, WhatDoesNotDivideIsMasked) {
  Batch batch;
  ASSERT_TRUE(TrainingBatch(*data_, {5, 4, 2, 1}, 3, 0, 0, &batch).ok());
  EXPECT_THAT(
      std::vector<int32_t>(batch.targets.begin() + 4, batch.targets.end()),
      Each(kIgnoredTarget));
  EXPECT_NE(batch.targets[0], kIgnoredTarget);
  EXPECT_EQ(batch.sequence_ids, (std::vector<int64_t>{4, 5, 6, 7}));
}

TEST(TokenData, EvaluationCountsEveryTokenOnceRestsIncluded) {
  Counting("part_0.bin", 10);      // 2 whole sequences and a rest of 1
  Counting("part_1.bin", 8, 100);  // 1 and a rest of 3
  const auto data = TokenData::Open(Path("part_*.bin"), "", 4, 1000);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->whole_sequences(), 3);
  EXPECT_EQ((*data)->all_sequences(), 5);
  std::multiset<int32_t> targets;
  for (int rank = 0; rank < 2; ++rank) {
    for (int64_t micro = 0; micro < 3; ++micro) {
      Batch batch;
      ASSERT_TRUE(
          EvaluationBatch(**data, {2, 1, 2, rank}, 5, micro, &batch).ok());
      for (int32_t target : batch.targets) {
        if (target != kIgnoredTarget) targets.insert(target);
      }
    }
  }
  EXPECT_EQ(targets, (std::multiset<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 101,
                                             102, 103, 104, 105, 106, 107}));
}

TEST(TokenData, SaysWhatIsMissing) {
  const auto error = [](const std::string& path) {
    return std::string(
        TokenData::Open(path, "train.bin", 4, 10).status().message());
  };
  EXPECT_THAT(error(""), HasSubstr("data.path is empty"));
  EXPECT_THAT(error(Path("nothing_*.bin")), HasSubstr("names no file"));
  EXPECT_THAT(error(Counting("one.bin", 1)),
              HasSubstr("hold 1 tokens; at least 2"));
  const auto data = TokenData::Open(Counting("three.bin", 3), "", 4, 10);
  Batch batch;
  EXPECT_THAT(
      std::string(
          TrainingBatch(**data, {1, 1, 1, 0}, 0, 0, 0, &batch).message()),
      HasSubstr("data.sequence_length is 4"));
}

}  // namespace
}  // namespace shardgraph
