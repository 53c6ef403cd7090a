// The .idx file beside Megatron's .bin of tokens.
//
// Little-endian: "MMIDIDX\0\0", u64 1, u8 dtype, u64 sequences, u64 entries of
// the document index, i32 lengths of sequences, i64 their byte offsets, i64
// document index: the first sequence of each document, and the number of
// sequences.
#ifndef FSDP_DATA_MEGATRON_INDEX_H_
#define FSDP_DATA_MEGATRON_INDEX_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

struct MegatronIndex {
  int token_bytes = 0;
  bool is_signed = false;
  int64_t tokens = 0;
  // First token of each document that is not empty, ascending; starts with 0.
  std::vector<int64_t> document_starts;
};

// Trusts nothing: the tokens that it describes are back to back and take
// `bin_bytes`. InvalidArgument says what is wrong, without the file's name.
absl::StatusOr<MegatronIndex> ParseMegatronIndex(absl::string_view file,
                                                 int64_t bin_bytes);

}  // namespace shardgraph

#endif  // FSDP_DATA_MEGATRON_INDEX_H_
