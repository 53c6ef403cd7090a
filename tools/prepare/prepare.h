// Prepare: text files to token files with a held-out part.
//
// The inputs, back to back in the order given, are cut into blocks of 64 KiB;
// every 25th block (the 25th, the 50th, ...) is held out. An input of less than
// 25 such blocks is cut into 25 smaller ones. Where the tokenizer forms words,
// a block goes on to the end of a line. A tokenizer with a token for the end of
// a text has it behind each input file. The output folder gets train.bin and
// val.bin (llm.c's formats, u16 tokens, or u32 for large vocabularies) and the
// tokenizer's file.
#ifndef TOOLS_PREPARE_PREPARE_H_
#define TOOLS_PREPARE_PREPARE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardgraph {

inline constexpr int64_t kBlockBytes = 64 << 10;
inline constexpr int64_t kHeldOutEvery = 25;

struct PrepareOptions {
  std::vector<std::string> inputs;  // paths or globs
  std::string output;               // folder, made when missing
  std::string tokenizer = "bytes";
  // Called now and then with bytes done and all bytes; null: not.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct PrepareResult {
  int64_t files = 0;
  int64_t bytes = 0;
  int64_t train_tokens = 0;
  int64_t validation_tokens = 0;
  int64_t vocab_size = 0;
  std::optional<int32_t> end_of_text;  // the token behind each file, if any
};

// InvalidArgument names the input or the folder, what is wrong and the remedy.
absl::StatusOr<PrepareResult> Prepare(const PrepareOptions& options);

// --input=FILE_OR_GLOB (repeated, or more of them as plain arguments),
// --output=DIR, --tokenizer=bytes or PATH; "--flag value" is understood too.
// Paths are taken from where the user typed them. InvalidArgument for wrong
// flags, Cancelled with the usage text for --help.
absl::StatusOr<PrepareOptions> ParsePrepareFlags(
    const std::vector<std::string>& arguments);

}  // namespace shardgraph

#endif  // TOOLS_PREPARE_PREPARE_H_
