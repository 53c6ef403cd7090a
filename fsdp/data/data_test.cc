#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fsdp/data/batches.h"
#include "fsdp/data/megatron_index.h"
#include "fsdp/data/prefetch.h"
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
  const auto writer = TokenFileWriter::Create(Path(name), 1 << 16);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (int i = 0; i < count; ++i) {
    const int32_t token = first + i;
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
  { ASSERT_TRUE(TokenFileWriter::Create(Path("half.bin"), 256).ok()); }
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
      : mix_(*TokenMix::Open({{Counting("batches.bin", 41), 1}}, "", 4, 1000)),
        data_(mix_->source(0)) {}

  std::unique_ptr<TokenMix> mix_;
  const TokenData& data_;
};

TEST_F(BatchesTest, TargetsAreTheTokensBehind) {
  EXPECT_EQ(data_.whole_sequences(), 10);
  std::vector<int32_t> tokens(4), targets(4);
  ASSERT_TRUE(data_.Get(9, false, tokens.data(), targets.data(), nullptr).ok());
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
              TrainingBatch(*mix_, {5, 2, world, rank}, 3, step, micro, &batch)
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
    ASSERT_TRUE(TrainingBatch(*mix_, {5, 4, 1, 0}, 3, step, 0, &batch).ok());
    ASSERT_TRUE(EvaluationBatch(data_, {5, 4, 1, 0}, 8, step, &batch).ok());
  }
  EXPECT_EQ(NumAllocations() - before, 0);
}

TEST_F(BatchesTest, WhatDoesNotDivideIsMasked) {
  Batch batch;
  ASSERT_TRUE(TrainingBatch(*mix_, {5, 4, 2, 1}, 3, 0, 0, &batch).ok());
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
  EXPECT_THAT(
      std::string(TokenMix::Open({{Counting("three.bin", 3), 1}}, "", 4, 10)
                      .status()
                      .message()),
      HasSubstr("data.sequence_length is 4"));
}

// NAME.bin and NAME.idx of tokens of T, one sequence per length, and which
// sequences begin a document.
template <typename T>
void WriteMegatron(const std::string& name, uint8_t dtype,
                   const std::vector<T>& tokens,
                   const std::vector<int32_t>& lengths,
                   const std::vector<int64_t>& documents) {
  WriteBytes(Path(name + ".bin"), tokens.data(), tokens.size() * sizeof(T));
  std::string index("MMIDIDX\0\0", 9);
  const auto put = [&](auto value) {
    index.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  put(uint64_t{1});
  put(dtype);
  put(uint64_t{lengths.size()});
  put(uint64_t{documents.size()});
  for (const int32_t length : lengths) put(length);
  int64_t offset = 0;
  for (const int32_t length : lengths) {
    put(offset);
    offset += length * sizeof(T);
  }
  for (const int64_t document : documents) put(document);
  WriteBytes(Path(name + ".idx"), index.data(), index.size());
}

TEST(MegatronIndex, FilesAreReadInPlace) {
  WriteMegatron<uint16_t>("mega16", 8, {1, 2, 3, 4, 5, 65535, 7}, {3, 0, 4},
                          {0, 2, 3});
  WriteMegatron<int32_t>("mega32", 4, {100000, 2, 3}, {1, 1, 1}, {0, 1, 2, 3});
  WriteMegatron<int64_t>("mega64", 5, {1, -2}, {2}, {0, 1});
  WriteMegatron<uint8_t>("mega8", 1, {200, 255}, {2}, {0, 1});
  std::vector<int32_t> tokens(3);
  for (const char* ending : {".bin", ".idx"}) {
    const auto file = TokenFile::Open(Path("mega16") + ending);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->size(), 7);
    EXPECT_EQ((*file)->document_starts(), (std::vector<int64_t>{0, 3}));
    ASSERT_TRUE((*file)->Read(3, 65536, absl::MakeSpan(tokens)).ok());
    EXPECT_EQ(tokens, (std::vector<int32_t>{4, 5, 65535}));
  }
  const auto wide = TokenFile::Open(Path("mega32.bin"));
  ASSERT_TRUE((*wide)->Read(0, 128256, absl::MakeSpan(tokens)).ok());
  EXPECT_EQ(tokens, (std::vector<int32_t>{100000, 2, 3}));
  EXPECT_EQ((*wide)->document_starts(), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_THAT(std::string((*TokenFile::Open(Path("mega64.bin")))
                              ->Read(0, 10, absl::MakeSpan(tokens.data(), 2))
                              .message()),
              HasSubstr("token -2 at position 1"));
  ASSERT_TRUE((*TokenFile::Open(Path("mega8.bin")))
                  ->Read(0, 256, absl::MakeSpan(tokens.data(), 2))
                  .ok());
  EXPECT_EQ(tokens[1], 255);
  // Both files of a pair match; they are one.
  const auto data = TokenData::Open(Path("mega16*"), "", 3, 65536);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->tokens(), 7);
}

TEST(MegatronIndex, WhatIsWrongIsNamed) {
  WriteMegatron<uint16_t>("wrong", 8, {1, 2, 3}, {1, 2}, {0, 2});
  std::ifstream stream(Path("wrong.idx"), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(stream)), {});
  ASSERT_TRUE(ParseMegatronIndex(good, 6).ok());
  const auto error = [&](size_t at, uint64_t value, size_t bytes) {
    std::string text = good;
    std::memcpy(text.data() + at, &value, bytes);
    return std::string(ParseMegatronIndex(text, 6).status().message());
  };
  EXPECT_THAT(error(0, 'X', 1), HasSubstr("does not start"));
  EXPECT_THAT(error(9, 2, 8), HasSubstr("version is 2"));
  EXPECT_THAT(error(17, 6, 1), HasSubstr("dtype is 6"));
  EXPECT_THAT(error(18, 3, 8), HasSubstr("do not fit 3 sequences"));
  EXPECT_THAT(error(18, UINT64_MAX / 12, 8), HasSubstr("do not fit"));
  EXPECT_THAT(error(26, UINT64_MAX, 8), HasSubstr("do not fit"));
  EXPECT_THAT(error(34, -1, 4), HasSubstr("sequence 0 has -1 tokens"));
  EXPECT_THAT(error(38, 3, 4), HasSubstr("describes 4 tokens of 2 bytes"));
  EXPECT_THAT(error(50, 4, 8), HasSubstr("back to back"));
  EXPECT_THAT(error(66, 3, 8), HasSubstr("documents is 3"));
  EXPECT_FALSE(ParseMegatronIndex(good.substr(0, 30), 6).ok());
  EXPECT_THAT(std::string(ParseMegatronIndex(good, 8).status().message()),
              HasSubstr("the .bin beside it has 8 bytes"));
}

TEST(TokenData, DocumentsAreToldApart) {
  // By an ending token, 9; and by an index. The rest has 2 tokens.
  const std::vector<uint16_t> tokens = {1, 2, 9, 3, 9, 4, 5, 6, 7, 8, 1};
  WriteBytes(Path("ends.bin"), tokens.data(), tokens.size() * 2);
  WriteMegatron<uint16_t>("indexed", 8, tokens, {3, 2, 6}, {0, 1, 2, 3});
  for (const auto& [name, end] :
       {std::pair("ends.bin", 9), std::pair("indexed.bin", -1)}) {
    const auto data = TokenData::Open(Path(name), "", 8, 10, {true, end});
    ASSERT_TRUE(data.ok()) << data.status();
    Batch batch;
    ASSERT_TRUE(EvaluationBatch(**data, {2, 2, 1, 0}, 2, 0, &batch).ok());
    EXPECT_EQ(batch.documents, (std::vector<int32_t>{0, 0, 0, 1, 1, 2, 2, 2,  //
                                                     0, 0, 0, 0, 0, 0, 0, 0}))
        << name;
    EXPECT_EQ(batch.targets,
              (std::vector<int32_t>{2, 9, -100, 9, -100, 5, 6, 7,  //
                                    8, 1, -100, -100, -100, -100, -100, -100}))
        << name;
  }
  EXPECT_THAT(std::string(TokenData::Open(Path("ends.bin"), "", 8, 10, {true})
                              .status()
                              .message()),
              HasSubstr("set data.end_of_text"));
}

class TokenMixTest : public ::testing::Test {
 protected:
  TokenMixTest()
      : mix_(*TokenMix::Open({{Counting("mix_0.bin", 101), 1},
                              {Counting("mix_1.bin", 401, 1000), 5},
                              {Counting("mix_2.bin", 61, 2000), 2}},
                             "", 4, 65536)) {}

  std::unique_ptr<TokenMix> mix_;
};

TEST_F(TokenMixTest, SharesAreExactAndEpochsComplete) {
  for (const uint64_t seed : {1, 2}) {
    std::vector<std::vector<int64_t>> seen(3);
    for (int64_t g = 0; g < 4096; ++g) {
      const TokenMix::Place place = mix_->Find(g, seed);
      seen[place.source].push_back(place.index);
    }
    EXPECT_EQ(seen[0].size(), 512u);
    EXPECT_EQ(seen[1].size(), 2560u);
    EXPECT_EQ(seen[2].size(), 1024u);
    for (int s = 0; s < 3; ++s) {
      // As often as epochs, give or take one.
      const int64_t n = mix_->source(s).whole_sequences();
      std::vector<int64_t> times(n, 0);
      for (const int64_t index : seen[s]) ++times[index];
      const int64_t epochs = seen[s].size() / n;
      for (const int64_t t : times) {
        EXPECT_GE(t, epochs);
        EXPECT_LE(t, epochs + 1);
      }
    }
  }
  int moved = 0;
  for (int64_t g = 0; g < 1000; ++g)
    moved += mix_->Find(g, 1).index != mix_->Find(g, 2).index;
  EXPECT_GT(moved, 800);
}

TEST_F(TokenMixTest, OrderIsTheSameAtAnyWorldSizeAndFromAnyStep) {
  // First tokens of the sequences of steps 3 to 5, in their global order.
  const auto order = [&](int world) {
    std::map<int64_t, int32_t> firsts;
    for (int64_t step = 3; step < 6; ++step) {
      for (int rank = 0; rank < world; ++rank) {
        for (int64_t micro = 0; micro * world * 2 < 10; ++micro) {
          Batch batch;
          EXPECT_TRUE(
              TrainingBatch(*mix_, {10, 2, world, rank}, 3, step, micro, &batch)
                  .ok());
          for (int b = 0; b < 2; ++b) {
            if (batch.targets[b * 4] != kIgnoredTarget)
              firsts[batch.sequence_ids[b]] = batch.tokens[b * 4];
          }
        }
      }
    }
    return firsts;
  };
  const auto one = order(1);
  EXPECT_EQ(one.size(), 30u);
  for (int world : {2, 3, 4, 7}) EXPECT_EQ(order(world), one) << world;
}

TEST_F(TokenMixTest, WrongWeightsAreNamed) {
  const auto error = [&](double first, double second) {
    return std::string(TokenMix::Open({{Path("mix_0.bin"), first},
                                       {Path("mix_1.bin"), second}},
                                      "", 4, 65536)
                           .status()
                           .message());
  };
  EXPECT_THAT(error(1, -1), HasSubstr("data.sources[1].weight is -1"));
  EXPECT_THAT(error(1, 0), HasSubstr("a number above 0"));
  EXPECT_THAT(error(1, 1e-9), HasSubstr("one part in 4096"));
  EXPECT_THAT(error(1e-9, 1), HasSubstr("data.sources[0].weight"));
  EXPECT_THAT(error(1, std::numeric_limits<double>::infinity()),
              HasSubstr("above 0"));
}

TEST_F(TokenMixTest, PrefetcherGivesTheSameBatches) {
  const auto fill = [&](int64_t step, int64_t micro, Batch* batch) {
    if (step == 7) return absl::DataLossError("step 7");
    return TrainingBatch(*mix_, {5, 2, 1, 0}, 3, step, micro, batch);
  };
  Batch batch, expected;
  {
    BatchPrefetcher prefetcher(fill, 3, 2);
    const auto check = [&](int64_t step, int64_t micro) {
      ASSERT_TRUE(prefetcher.Next(step, micro, &batch).ok());
      ASSERT_TRUE(
          TrainingBatch(*mix_, {5, 2, 1, 0}, 3, step, micro, &expected).ok());
      EXPECT_EQ(batch.tokens, expected.tokens);
      EXPECT_EQ(batch.targets, expected.targets);
      EXPECT_EQ(batch.sequence_ids, expected.sequence_ids);
    };
    for (int64_t step = 2; step < 7; ++step) {
      for (int64_t micro = 0; micro < 3; ++micro) check(step, micro);
    }
    // The error comes when its batch is asked for, and is not the end.
    EXPECT_EQ(prefetcher.Next(7, 0, &batch).message(), "step 7");
    check(8, 0);
    check(8, 1);
    check(1, 2);  // back
    check(2, 0);
    check(40, 1);  // and far ahead
  }
}

TEST_F(TokenMixTest, PrefetchedBatchesAllocateNothing) {
  BatchPrefetcher prefetcher(
      [&](int64_t step, int64_t micro, Batch* batch) {
        return TrainingBatch(*mix_, {4, 4, 1, 0}, 3, step, micro, batch);
      },
      1, 2);
  Batch batch;
  int64_t before = 0;
  for (int64_t step = 0; step < 50; ++step) {
    if (step == 5) before = NumAllocations();
    ASSERT_TRUE(prefetcher.Next(step, 0, &batch).ok());
  }
  EXPECT_EQ(NumAllocations() - before, 0);
}

}  // namespace
}  // namespace shardgraph
