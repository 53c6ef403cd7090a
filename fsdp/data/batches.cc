#include "fsdp/data/batches.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/random/random.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

absl::StatusOr<std::vector<std::string>> FilesOf(
    const std::string& path, const std::string& file_in_folder) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "data.path is empty; set it to a folder made by `bazel run "
        "//tools:prepare` or to token files, as in "
        "data.path=DIR");
  }
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return std::vector<std::string>{absl::StrCat(path, "/", file_in_folder)};
  }
  glob_t found = {};
  std::vector<std::string> files;
  if (glob(path.c_str(), 0, nullptr, &found) == 0) {
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);  // sorted
  }
  globfree(&found);
  if (files.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path \"", path,
        "\" names no file; make token files with `bazel run //tools:prepare`"));
  }
  return files;
}

// Fills sequence b of the batch, masked when there is none.
void Mask(int64_t b, int64_t length, Batch* batch) {
  std::fill_n(batch->tokens.begin() + b * length, length, 0);
  std::fill_n(batch->targets.begin() + b * length, length, kIgnoredTarget);
}

void Resize(const TokenData& data, const BatchShape& shape, Batch* batch) {
  batch->tokens.resize(shape.micro_batch_size * data.length());
  batch->targets.resize(batch->tokens.size());
  batch->sequence_ids.resize(shape.micro_batch_size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenData>> TokenData::Open(
    const std::string& path, const std::string& file_in_folder, int64_t length,
    int64_t vocab_size) {
  SG_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      FilesOf(path, file_in_folder));
  auto data = std::make_unique<TokenData>();
  data->length_ = length;
  data->vocab_size_ = vocab_size;
  data->starts_.emplace_back();
  for (const std::string& name : names) {
    SG_ASSIGN_OR_RETURN(std::unique_ptr<TokenFile> file, TokenFile::Open(name));
    const int64_t predictions =
        std::max<int64_t>(0, file->size() - 1);  // tokens that have a next one
    Start next = data->starts_.back();
    next.whole += predictions / length;
    next.all += (predictions + length - 1) / length;
    data->tokens_ += file->size();
    data->starts_.push_back(next);
    data->files_.push_back(std::move(file));
  }
  if (data->all_sequences() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token files of \"", path, "\" hold ", data->tokens_,
                     " tokens; at least 2 are needed"));
  }
  return data;
}

absl::Status TokenData::Get(int64_t index, bool with_rests, int32_t* tokens,
                            int32_t* targets) const {
  const auto count = [&](const Start& start) {
    return with_rests ? start.all : start.whole;
  };
  SG_CHECK(index >= 0 && index < count(starts_.back()))
      << "sequence " << index << " of " << count(starts_.back());
  const auto after = std::upper_bound(
      starts_.begin(), starts_.end(), index,
      [&](int64_t i, const Start& start) { return i < count(start); });
  const size_t f = after - starts_.begin() - 1;
  const int64_t begin = (index - count(starts_[f])) * length_;
  const int64_t n = std::min(length_, files_[f]->size() - 1 - begin);
  SG_RETURN_IF_ERROR(
      files_[f]->Read(begin, vocab_size_, absl::MakeSpan(tokens, n)));
  SG_RETURN_IF_ERROR(
      files_[f]->Read(begin + 1, vocab_size_, absl::MakeSpan(targets, n)));
  std::fill(tokens + n, tokens + length_, 0);
  std::fill(targets + n, targets + length_, kIgnoredTarget);
  return absl::OkStatus();
}

int64_t Permute(int64_t index, int64_t n, uint64_t seed, uint64_t epoch) {
  // A Feistel network over the next even power of two, walked until the result
  // is below n (at most 4 steps on average).
  int half = 1;
  while (half < 31 && (int64_t{1} << (2 * half)) < n) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const RandomKey key = MakeRandomKey(seed, HashName("data order"), epoch);
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed =
          left ^ (RandomWord(key, (round << 40 | right) * 4) & mask);
      left = right;
      right = mixed;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

absl::Status TrainingBatch(const TokenData& data, const BatchShape& shape,
                           uint64_t seed, int64_t step, int64_t micro,
                           Batch* batch) {
  const int64_t n = data.whole_sequences();
  if (n == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length is ", data.length(),
                     ", but the training data has only ", data.tokens(),
                     " tokens; use more text or shorter sequences"));
  }
  Resize(data, shape, batch);
  const int64_t first =
      (micro * shape.world_size + shape.rank) * shape.micro_batch_size;
  for (int64_t b = 0; b < shape.micro_batch_size; ++b) {
    const int64_t in_batch = first + b,
                  global = step * shape.batch_size + in_batch;
    batch->sequence_ids[b] = global;
    if (in_batch >= shape.batch_size) {
      Mask(b, data.length(), batch);
      continue;
    }
    const int64_t index = Permute(global % n, n, seed, global / n);
    SG_RETURN_IF_ERROR(data.Get(index, false, &batch->tokens[b * data.length()],
                                &batch->targets[b * data.length()]));
  }
  return absl::OkStatus();
}

absl::Status EvaluationBatch(const TokenData& data, const BatchShape& shape,
                             int64_t sequences, int64_t micro, Batch* batch) {
  Resize(data, shape, batch);
  const int64_t first =
      (micro * shape.world_size + shape.rank) * shape.micro_batch_size;
  for (int64_t b = 0; b < shape.micro_batch_size; ++b) {
    batch->sequence_ids[b] = first + b;
    if (first + b >= std::min(sequences, data.all_sequences())) {
      Mask(b, data.length(), batch);
      continue;
    }
    SG_RETURN_IF_ERROR(data.Get(first + b, true,
                                &batch->tokens[b * data.length()],
                                &batch->targets[b * data.length()]));
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
