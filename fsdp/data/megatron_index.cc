#include "fsdp/data/megatron_index.h"

#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace shardgraph {
namespace {

constexpr absl::string_view kMagic("MMIDIDX\0\0", 9);
constexpr int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

template <typename T>
T At(absl::string_view file, int64_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

}  // namespace

absl::StatusOr<MegatronIndex> ParseMegatronIndex(absl::string_view file,
                                                 int64_t bin_bytes) {
  const int64_t size = static_cast<int64_t>(file.size());
  if (size < kHeaderBytes || !absl::StartsWith(file, kMagic))
    return Wrong("it does not start as a Megatron index does (MMIDIDX)");
  const uint64_t version = At<uint64_t>(file, 9);
  if (version != 1)
    return Wrong(absl::StrCat("its version is ", version, "; 1 can be read"));
  MegatronIndex index;
  const int dtype = At<uint8_t>(file, 17);
  switch (dtype) {
    case 1:
    case 2:
      index.token_bytes = 1;
      break;
    case 3:
    case 8:
      index.token_bytes = 2;
      break;
    case 4:
      index.token_bytes = 4;
      break;
    case 5:
      index.token_bytes = 8;
      break;
    default:
      return Wrong(absl::StrCat("its dtype is ", dtype,
                                "; those of integers are 1 (u8), 2 (i8), 3 "
                                "(i16), 4 (i32), 5 (i64) and 8 (u16)"));
  }
  index.is_signed = dtype != 1 && dtype != 8;
  const uint64_t sequences = At<uint64_t>(file, 18),
                 documents = At<uint64_t>(file, 26);
  // In this order nothing overflows.
  if (sequences > file.size() / 12 || documents > file.size() / 8 ||
      size !=
          kHeaderBytes + static_cast<int64_t>(sequences * 12 + documents * 8)) {
    return Wrong(absl::StrCat("it has ", size, " bytes, which do not fit ",
                              sequences, " sequences and ", documents,
                              " entries of documents"));
  }
  const int64_t lengths = kHeaderBytes, offsets = lengths + sequences * 4,
                first_sequences = offsets + sequences * 8;
  std::vector<int64_t> starts(sequences + 1, 0);  // tokens
  for (uint64_t i = 0; i < sequences; ++i) {
    const int32_t length = At<int32_t>(file, lengths + i * 4);
    const int64_t offset = At<int64_t>(file, offsets + i * 8);
    if (length < 0 || offset != starts[i] * index.token_bytes) {
      return Wrong(absl::StrCat(
          "sequence ", i, " has ", length, " tokens from byte ", offset,
          " on; sequences must lie back to back, this one from byte ",
          starts[i] * index.token_bytes, " on"));
    }
    starts[i + 1] = starts[i] + length;
  }
  index.tokens = starts[sequences];
  if (index.tokens * index.token_bytes != bin_bytes) {
    return Wrong(absl::StrCat(
        "it describes ", index.tokens, " tokens of ", index.token_bytes,
        " bytes, but the .bin beside it has ", bin_bytes, " bytes"));
  }
  int64_t before = 0;
  for (uint64_t i = 0; i < documents; ++i) {
    const int64_t sequence = At<int64_t>(file, first_sequences + i * 8);
    if (sequence < before || sequence > static_cast<int64_t>(sequences)) {
      return Wrong(absl::StrCat("entry ", i, " of its documents is ", sequence,
                                "; it must be from ", before, " to ",
                                sequences));
    }
    before = sequence;
    const int64_t start = starts[sequence];
    if (start == index.tokens) continue;  // the end, or empty documents
    if (index.document_starts.empty() || index.document_starts.back() < start)
      index.document_starts.push_back(start);
  }
  if (index.document_starts.empty() || index.document_starts[0] != 0)
    index.document_starts.insert(index.document_starts.begin(), 0);
  return index;
}

}  // namespace shardgraph
