// The program `convert`: weights from one format to another, streamed: a few
// MiB are in memory at a time, whatever the size of the model.
//
// A Hugging Face folder or a model of llm.c becomes a run directory with one
// checkpoint, and a checkpoint a Hugging Face folder, unless --format says
// otherwise. Names and bytes of tensors are kept, dtypes too unless --dtype is
// given. Adapters stay what they are in a checkpoint, are merged into a Hugging
// Face folder, and are written apart by --format=adapter. Tokenizer files and
// generation settings beside the weights are copied.
#ifndef TOOLS_CONVERT_CONVERT_H_
#define TOOLS_CONVERT_CONVERT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardgraph {

struct ConvertOptions {
  std::string from;   // Hugging Face folder, checkpoint, run or llm.c file
  std::string to;     // a folder that is not there yet, or empty
  std::string dtype;  // F32, BF16, F16; as stored if empty
  // huggingface, checkpoint or adapter; if empty the one of the first two that
  // `from` is not.
  std::string format;
  std::string adapter;  // folder of one that the model gets; may be empty
  int64_t max_file_bytes = 5'000'000'000;  // of a Hugging Face file's data
};

struct ConvertResult {
  std::string written;  // the Hugging Face folder, or the checkpoint
  int64_t parameters = 0;
  int64_t bytes = 0;  // of weights
};

// InvalidArgument names the flag or file, what is wrong and the remedy.
absl::StatusOr<ConvertResult> Convert(const ConvertOptions& options);

// InvalidArgument for wrong flags, Cancelled with the usage text for --help.
absl::StatusOr<ConvertOptions> ParseConvertFlags(
    const std::vector<std::string>& arguments);

}  // namespace shardgraph

#endif  // TOOLS_CONVERT_CONVERT_H_
