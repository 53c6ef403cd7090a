// trigram: how well a byte trigram model predicts held-out text: the baseline
// of a small model of bytes. Fits on train.bin and measures on val.bin of a
// folder made by `prepare`. Exit status: 0 done, 2 a wrong flag or folder.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/data/token_file.h"
#include "kernels/status_macros.h"
#include "tools/bench/trigram.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"

namespace shardgraph {
namespace {

absl::StatusOr<std::vector<int32_t>> ReadBytes(const std::string& path) {
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<TokenFile> file,
                      TokenFile::Open(path));
  std::vector<int32_t> tokens(file->size());
  const absl::Status status =
      file->Read(0, /*vocab_size=*/256, absl::MakeSpan(tokens));
  if (!status.ok() || tokens.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " holds no byte tokens; make the folder with `bazel run "
                     "//tools:prepare` and its byte tokenizer"));
  }
  return tokens;
}

absl::Status Run(const std::vector<std::string>& args) {
  std::vector<std::string> folders;
  SG_RETURN_IF_ERROR(ParseFlags(
      "trigram DATA_DIR: nats per byte of val.bin under a byte trigram model "
      "fitted on train.bin",
      args, {}, &folders));
  if (folders.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("one folder with train.bin and val.bin is needed, not ",
                     folders.size()));
  }
  const std::string folder = UserPath(folders[0]);
  SG_ASSIGN_OR_RETURN(const std::vector<int32_t> train,
                      ReadBytes(absl::StrCat(folder, "/train.bin")));
  SG_ASSIGN_OR_RETURN(const std::vector<int32_t> validation,
                      ReadBytes(absl::StrCat(folder, "/val.bin")));
  const ByteTrigram model(train);
  std::printf("fitted on %zu bytes; nats per byte over %zu held-out bytes:\n",
              train.size(), validation.size());
  const char* const names[] = {"unigram", "bigram", "trigram"};
  for (int history = 0; history <= ByteTrigram::kMaxHistory; ++history) {
    std::printf("%-8s %.4f\n", names[history],
                model.NatsPerByte(validation, history));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace shardgraph

int main(int argc, char** argv) {
  const absl::Status status =
      shardgraph::Run(shardgraph::ArgumentsOf(argc, argv));
  if (absl::IsCancelled(status)) {  // --help
    std::printf("%s", std::string(status.message()).c_str());
    return 0;
  }
  return shardgraph::Finish("trigram", status);
}
