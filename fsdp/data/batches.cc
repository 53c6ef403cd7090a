#include "fsdp/data/batches.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"
#include "kernels/random/random.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int64_t kBlock = 4096;  // sequences in which a mix is exact
constexpr uint64_t kSourceKey = 0x9e3779b97f4a7c15;  // odd: all keys differ

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
  // The index beside a Megatron file comes with it.
  const std::set<std::string> all(files.begin(), files.end());
  files.erase(std::remove_if(files.begin(), files.end(),
                             [&](const std::string& file) {
                               absl::string_view stem = file;
                               return absl::ConsumeSuffix(&stem, ".idx") &&
                                      all.count(absl::StrCat(stem, ".bin")) > 0;
                             }),
              files.end());
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
  if (!batch->documents.empty())
    std::fill_n(batch->documents.begin() + b * length, length, 0);
}

void Resize(int64_t length, bool documents, const BatchShape& shape,
            Batch* batch) {
  batch->tokens.resize(shape.micro_batch_size * length);
  batch->targets.resize(batch->tokens.size());
  batch->sequence_ids.resize(shape.micro_batch_size);
  batch->documents.resize(documents ? batch->tokens.size() : 0);
}

// Puts a sequence of the data in place b of the batch.
absl::Status Put(const TokenData& data, int64_t index, bool with_rests,
                 int64_t b, Batch* batch) {
  const int64_t at = b * data.length();
  return data.Get(index, with_rests, &batch->tokens[at], &batch->targets[at],
                  batch->documents.empty() ? nullptr : &batch->documents[at]);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenData>> TokenData::Open(
    const std::string& path, const std::string& file_in_folder, int64_t length,
    int64_t vocab_size, DocumentOptions documents) {
  return Open(std::vector<std::string>{path}, file_in_folder, length,
              vocab_size, documents);
}

absl::StatusOr<std::unique_ptr<TokenData>> TokenData::Open(
    const std::vector<std::string>& paths, const std::string& file_in_folder,
    int64_t length, int64_t vocab_size, DocumentOptions documents) {
  auto data = std::make_unique<TokenData>();
  data->length_ = length;
  data->vocab_size_ = vocab_size;
  data->documents_ = documents;
  data->starts_.emplace_back();
  for (const std::string& path : paths) {
    SG_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        FilesOf(path, file_in_folder));
    for (const std::string& name : names) {
      SG_ASSIGN_OR_RETURN(std::unique_ptr<TokenFile> file,
                          TokenFile::Open(name));
      if (documents.separate && documents.end_of_text < 0 &&
          file->document_starts().empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "data.mask_documents is true, but ", file->path(),
            " does not say where its documents are; set data.end_of_text to "
            "the token that ends each"));
      }
      const int64_t predictions = std::max<int64_t>(
          0, file->size() - 1);  // tokens that have a next one
      Start next = data->starts_.back();
      next.whole += predictions / length;
      next.all += (predictions + length - 1) / length;
      data->tokens_ += file->size();
      data->starts_.push_back(next);
      data->files_.push_back(std::move(file));
    }
  }
  if (data->all_sequences() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the token files of \"", absl::StrJoin(paths, "\", \""), "\" hold ",
        data->tokens_, " tokens; at least 2 are needed"));
  }
  return data;
}

absl::Status TokenData::Get(int64_t index, bool with_rests, int32_t* tokens,
                            int32_t* targets, int32_t* documents) const {
  const auto count = [&](const Start& start) {
    return with_rests ? start.all : start.whole;
  };
  SG_CHECK(index >= 0 && index < count(starts_.back()))
      << "sequence " << index << " of " << count(starts_.back());
  const auto after = std::upper_bound(
      starts_.begin(), starts_.end(), index,
      [&](int64_t i, const Start& start) { return i < count(start); });
  const TokenFile& file = *files_[after - starts_.begin() - 1];
  const int64_t begin =
      (index - count(starts_[after - starts_.begin() - 1])) * length_;
  const int64_t n = std::min(length_, file.size() - 1 - begin);
  SG_RETURN_IF_ERROR(file.Read(begin, vocab_size_, absl::MakeSpan(tokens, n)));
  SG_RETURN_IF_ERROR(
      file.Read(begin + 1, vocab_size_, absl::MakeSpan(targets, n)));
  std::fill(tokens + n, tokens + length_, 0);
  std::fill(targets + n, targets + length_, kIgnoredTarget);
  if (!documents_.separate) return absl::OkStatus();
  // The next start after the token at hand.
  const std::vector<int64_t>& starts = file.document_starts();
  auto next = std::upper_bound(starts.begin(), starts.end(), begin);
  int32_t document = 0;
  for (int64_t i = 0; i < length_; ++i) {
    documents[i] = document;
    bool last = false;  // of its document
    if (starts.empty()) {
      last = i < n && tokens[i] == documents_.end_of_text;
    } else if (next != starts.end() && *next == begin + i + 1) {
      last = true;
      ++next;
    }
    if (!last) continue;
    ++document;
    targets[i] = kIgnoredTarget;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TokenMix>> TokenMix::Open(
    const std::vector<Source>& sources, const std::string& file_in_folder,
    int64_t length, int64_t vocab_size, DocumentOptions documents) {
  SG_CHECK(!sources.empty());
  auto mix = std::make_unique<TokenMix>();
  double sum = 0, before = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!(sources[i].weight > 0) || !std::isfinite(sources[i].weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.sources[", i, "].weight is ", sources[i].weight,
                       "; it must be a number above 0"));
    }
    sum += sources[i].weight;
  }
  if (!std::isfinite(sum)) {
    return absl::InvalidArgumentError(
        "data.sources: the sum of the weights is too large; give smaller ones");
  }
  mix->slots_.push_back(0);
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    SG_ASSIGN_OR_RETURN(std::unique_ptr<TokenData> data,
                        TokenData::Open(source.path, file_in_folder, length,
                                        vocab_size, documents));
    if (data->whole_sequences() == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.sequence_length is ", length, ", but the training data ",
          source.path, " has only ", data->tokens(),
          " tokens; use more text or shorter sequences"));
    }
    mix->sources_.push_back(std::move(data));
    before += source.weight;
    mix->slots_.push_back(
        i + 1 == sources.size() ? kBlock : std::llround(before / sum * kBlock));
    if (mix->slots_[i + 1] <= mix->slots_[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.sources[", i, "].weight is ", source.weight, " of a sum of ",
          sum, "; it must be at least one part in ", kBlock));
    }
  }
  return mix;
}

TokenMix::Place TokenMix::Find(int64_t global, uint64_t seed) const {
  Place place;
  int64_t turn = global;  // how many sequences of the source came before
  uint64_t key = seed;
  if (num_sources() > 1) {
    const int64_t block = global / kBlock;
    const int64_t slot =
        Permute(global % kBlock, kBlock, seed, static_cast<uint64_t>(block));
    place.source =
        static_cast<int>(std::upper_bound(slots_.begin(), slots_.end(), slot) -
                         slots_.begin() - 1);
    const int64_t first = slots_[place.source];
    turn = block * (slots_[place.source + 1] - first) + slot - first;
    key = seed ^ (kSourceKey * (place.source + 1));
  }
  const int64_t n = sources_[place.source]->whole_sequences();
  place.index = Permute(turn % n, n, key, static_cast<uint64_t>(turn / n));
  return place;
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

absl::Status TrainingBatch(const TokenMix& data, const BatchShape& shape,
                           uint64_t seed, int64_t step, int64_t micro,
                           Batch* batch) {
  Resize(data.length(), data.separates_documents(), shape, batch);
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
    const TokenMix::Place place = data.Find(global, seed);
    SG_RETURN_IF_ERROR(
        Put(data.source(place.source), place.index, false, b, batch));
  }
  return absl::OkStatus();
}

absl::Status EvaluationBatch(const TokenData& data, const BatchShape& shape,
                             int64_t sequences, int64_t micro, Batch* batch) {
  Resize(data.length(), data.separates_documents(), shape, batch);
  const int64_t first =
      (micro * shape.world_size + shape.rank) * shape.micro_batch_size;
  for (int64_t b = 0; b < shape.micro_batch_size; ++b) {
    batch->sequence_ids[b] = first + b;
    if (first + b >= std::min(sequences, data.all_sequences())) {
      Mask(b, data.length(), batch);
      continue;
    }
    SG_RETURN_IF_ERROR(Put(data, first + b, true, b, batch));
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
