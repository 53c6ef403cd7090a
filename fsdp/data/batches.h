// Batches: which tokens each rank sees in each micro-batch of each step.
//
// The order is global: sequence g of the run is a function of (seed, g) alone,
// whatever the world size, and step s takes the sequences [s x batch_size, (s +
// 1) x batch_size). An epoch is a permutation of all sequences of a source;
// several sources are mixed by weight (TokenMix).
#ifndef FSDP_DATA_BATCHES_H_
#define FSDP_DATA_BATCHES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/data/token_file.h"

namespace shardgraph {

// Masked target: no loss.
inline constexpr int32_t kIgnoredTarget = -100;

// A micro-batch of one rank: B sequences of T tokens.
struct Batch {
  std::vector<int32_t> tokens;        // [B * T]
  std::vector<int32_t> targets;       // [B * T], the token after each;
                                      // kIgnoredTarget where there is none
  std::vector<int64_t> sequence_ids;  // [B], global
  // [B * T], ascending from 0 in each sequence; empty unless the data separates
  // documents.
  std::vector<int32_t> documents;
};

// How the documents of packed data are kept apart.
struct DocumentOptions {
  bool separate = false;
  // The token that ends a document, in files that have no index of their own;
  // -1: none.
  int64_t end_of_text = -1;
};

// The data as sequences of `length` tokens, each with the token behind it.
// Sequences do not cross files.
class TokenData {
 public:
  // `path`: a file, a glob, or a folder, of which `file_in_folder` is taken.
  // InvalidArgument: nothing there, less than one sequence, or documents that
  // cannot be told apart.
  static absl::StatusOr<std::unique_ptr<TokenData>> Open(
      const std::string& path, const std::string& file_in_folder,
      int64_t length, int64_t vocab_size, DocumentOptions documents = {});
  // The same of several paths, in order.
  static absl::StatusOr<std::unique_ptr<TokenData>> Open(
      const std::vector<std::string>& paths, const std::string& file_in_folder,
      int64_t length, int64_t vocab_size, DocumentOptions documents = {});

  int64_t tokens() const { return tokens_; }
  int64_t length() const { return length_; }
  // Whole sequences, and those and the shorter rests of files.
  int64_t whole_sequences() const { return starts_.back().whole; }
  int64_t all_sequences() const { return starts_.back().all; }

  bool separates_documents() const { return documents_.separate; }

  // Sequence `index` of the whole ones (or of all, `with_rests`): writes
  // `length` tokens and targets; a rest is filled with token 0 and masked
  // targets. Where documents are separated, also the document of each token,
  // and what would be predicted from the document before is masked;
  // `documents` may be null otherwise.
  absl::Status Get(int64_t index, bool with_rests, int32_t* tokens,
                   int32_t* targets, int32_t* documents) const;

 private:
  struct Start {
    int64_t whole = 0;  // sequences in the files before
    int64_t all = 0;
  };

  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<Start> starts_;  // per file, and one more: the totals
  int64_t length_ = 0;
  int64_t vocab_size_ = 0;
  int64_t tokens_ = 0;
  DocumentOptions documents_;
};

// Sources of training data, mixed by weight. Of every 4,096 sequences each
// source has the same number, its share of the weights rounded, in an order
// that depends on the seed; each source is gone through in an order of its own,
// epoch by epoch. One source alone is in the order of its permutation.
class TokenMix {
 public:
  struct Source {
    std::string path;   // as TokenData::Open takes it
    double weight = 0;  // share of sequences, relative to the others
  };

  // InvalidArgument names the source: what is wrong with its data, a weight
  // that is not positive and finite, or one too small to have a sequence.
  static absl::StatusOr<std::unique_ptr<TokenMix>> Open(
      const std::vector<Source>& sources, const std::string& file_in_folder,
      int64_t length, int64_t vocab_size, DocumentOptions documents = {});

  struct Place {
    int source = 0;
    int64_t index = 0;  // among the source's whole sequences
  };

  // Where sequence `global` of the run is.
  Place Find(int64_t global, uint64_t seed) const;
  const TokenData& source(int i) const { return *sources_[i]; }
  int num_sources() const { return static_cast<int>(sources_.size()); }
  int64_t length() const { return sources_[0]->length(); }
  bool separates_documents() const {
    return sources_[0]->separates_documents();
  }

 private:
  std::vector<std::unique_ptr<TokenData>> sources_;
  std::vector<int64_t> slots_;  // where each source begins in a block; the end
};

struct BatchShape {
  int64_t batch_size = 0;        // global, sequences
  int64_t micro_batch_size = 0;  // per rank, sequences
  int world_size = 1;
  int rank = 0;
};

// Micro-batch `micro` of step `step`. Beyond batch_size: fully masked
// sequences.
absl::Status TrainingBatch(const TokenMix& data, const BatchShape& shape,
                           uint64_t seed, int64_t step, int64_t micro,
                           Batch* batch);

// Micro-batch `micro` of an evaluation over the first `sequences` (rests
// included), in order.
absl::Status EvaluationBatch(const TokenData& data, const BatchShape& shape,
                             int64_t sequences, int64_t micro, Batch* batch);

// Where `index` of [0, n) goes in permutation `epoch` of `seed`: a bijection,
// without memory.
int64_t Permute(int64_t index, int64_t n, uint64_t seed, uint64_t epoch);

}  // namespace shardgraph

#endif  // FSDP_DATA_BATCHES_H_
