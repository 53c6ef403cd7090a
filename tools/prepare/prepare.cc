#include "tools/prepare/prepare.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "fsdp/data/token_file.h"
#include "fsdp/files/durable_file.h"
#include "kernels/status_macros.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"
#include "tools/text/tokenizer.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kReadBytes = 1 << 20;
constexpr size_t kMaxPieceBytes = 4 << 20;
// First words of llm.c's token files.
constexpr int32_t kTokenMagics[] = {20240520, 20240801};
constexpr char kUsage[] =
    "prepare: turns text into token files with a held-out part.\n"
    "  prepare --input=FILE_OR_GLOB ... --output=DIR "
    "[--tokenizer=bytes|PATH]";

struct Input {
  std::string path;
  int64_t bytes = 0;
};

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("input ", path, ": ", what));
}

absl::StatusOr<Input> Stat(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return Wrong(path, strerror(errno));
  if (S_ISDIR(info.st_mode)) {
    return Wrong(path, absl::StrCat("it is a folder; name files, for example '",
                                    path, "/*.txt'"));
  }
  if (!S_ISREG(info.st_mode)) return Wrong(path, "it is no regular file");
  return Input{path, info.st_size};
}

// The files that a path or glob means, sorted. A file whose name looks like a
// glob is that file.
absl::Status Expand(const std::string& pattern, std::vector<Input>* inputs) {
  std::error_code error;
  if (fs::exists(pattern, error) ||
      pattern.find_first_of("*?[") == std::string::npos) {
    SG_ASSIGN_OR_RETURN(Input input, Stat(pattern));
    inputs->push_back(std::move(input));
    return absl::OkStatus();
  }
  glob_t found = {};
  absl::Cleanup free_found = [&found] { globfree(&found); };
  if (glob(pattern.c_str(), 0, nullptr, &found) != 0)
    return Wrong(pattern, "no file matches it");
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    SG_ASSIGN_OR_RETURN(Input input, Stat(found.gl_pathv[i]));
    inputs->push_back(std::move(input));
  }
  return absl::OkStatus();
}

// Sends text, in order, to the part that its block belongs to. A block ends at
// the first place behind its last byte where the tokenizer's text may be cut.
class Splitter {
 public:
  Splitter(int64_t block, const Tokenizer& tokenizer, TokenFileWriter* train,
           TokenFileWriter* validation)
      : block_(block),
        tokenizer_(tokenizer),
        train_(train),
        validation_(validation) {}

  absl::Status Add(absl::string_view bytes) {
    text_.append(bytes.data(), bytes.size());
    taken_ += static_cast<int64_t>(bytes.size());
    size_t begin = 0;
    for (;;) {
      const absl::string_view rest = absl::string_view(text_).substr(begin);
      const size_t end = BlockEnd(rest);
      if (end == absl::string_view::npos) break;
      SG_RETURN_IF_ERROR(Encode(rest.substr(0, end)));
      begin += end;
    }
    text_.erase(0, begin);
    return absl::OkStatus();
  }

  // A document ends here: its text is not joined with what follows.
  absl::Status EndDocument() {
    const std::optional<int32_t> end = tokenizer_.EndOfText();
    if (!end.has_value()) return absl::OkStatus();
    SG_RETURN_IF_ERROR(Finish());
    tokens_ = {*end};
    return Append();
  }

  absl::Status Finish() {
    if (text_.empty()) return absl::OkStatus();
    const std::string text = std::exchange(text_, "");
    return Encode(text);
  }

  int64_t bytes() const { return taken_; }

 private:
  // Bytes of `rest` that still belong to the block; npos: not known yet.
  size_t BlockEnd(absl::string_view rest) const {
    size_t end = (block_index_ + 1) * block_ - at_;
    for (; end < rest.size(); ++end) {
      if (tokenizer_.MayCut(rest.substr(0, end), rest.substr(end))) return end;
      // No line is that long: it is cut between any two characters.
      if (end >= kMaxPieceBytes && (rest[end] & 0xc0) != 0x80) return end;
    }
    return absl::string_view::npos;
  }

  absl::Status Encode(absl::string_view text) {
    tokens_.clear();
    tokenizer_.Encode(text, &tokens_);
    SG_RETURN_IF_ERROR(Append());
    at_ += static_cast<int64_t>(text.size());
    block_index_ = std::max(block_index_, at_ / block_);
    return absl::OkStatus();
  }

  absl::Status Append() {
    const bool held_out = block_index_ % kHeldOutEvery == kHeldOutEvery - 1;
    return (held_out ? validation_ : train_)->Append(tokens_);
  }

  const int64_t block_;
  const Tokenizer& tokenizer_;
  TokenFileWriter* const train_;
  TokenFileWriter* const validation_;
  int64_t taken_ = 0;        // bytes
  int64_t at_ = 0;           // of them encoded
  int64_t block_index_ = 0;  // of what is encoded next
  std::string text_;         // taken, not yet encoded
  std::vector<int32_t> tokens_;
};

absl::Status AddFile(const Input& input, int64_t total,
                     const PrepareOptions& options, Splitter* splitter) {
  const int file = open(input.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Wrong(input.path, strerror(errno));
  absl::Cleanup close_file = [file] { close(file); };
  std::string buffer(kReadBytes, '\0');
  for (int64_t done = 0;;) {
    const ssize_t n = read(file, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Wrong(input.path, strerror(errno));
    if (n == 0) {
      // The split depends on the size, so it must be what it was.
      if (done == input.bytes) return splitter->EndDocument();
      return Wrong(input.path, "it changed while it was read; try again");
    }
    const absl::string_view bytes(buffer.data(), n);
    int32_t magic = 0;
    if (done == 0 && bytes.size() >= sizeof(magic)) {
      std::memcpy(&magic, bytes.data(), sizeof(magic));
      if (std::count(std::begin(kTokenMagics), std::end(kTokenMagics), magic)) {
        return Wrong(input.path,
                     "it is a token file already; train on it as it is with "
                     "data.path");
      }
    }
    SG_RETURN_IF_ERROR(splitter->Add(bytes));
    done += n;
    if (done > input.bytes)
      return Wrong(input.path, "it changed while it was read; try again");
    if (options.progress) options.progress(splitter->bytes(), total);
  }
}

}  // namespace

absl::StatusOr<PrepareResult> Prepare(const PrepareOptions& options) {
  SG_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(options.tokenizer));
  std::vector<Input> inputs;
  for (const std::string& input : options.inputs)
    SG_RETURN_IF_ERROR(Expand(input, &inputs));
  int64_t total = 0;
  for (const Input& input : inputs) total += input.bytes;
  if (total < kHeldOutEvery) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the input ", inputs.empty() ? "" : inputs[0].path,
        inputs.size() > 1 ? absl::StrCat(" and ", inputs.size() - 1, " more")
                          : "",
        total == 0 ? " is empty"
                   : absl::StrCat(" has only ", total, " bytes, fewer than ",
                                  kHeldOutEvery),
        "; give text of some hundred kilobytes or more"));
  }

  std::error_code error;
  fs::create_directories(options.output, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot make the output folder ", options.output, ": ",
                     error.message(), "; name another with --output"));
  }
  SG_ASSIGN_OR_RETURN(const auto train,
                      TokenFileWriter::Create(options.output + "/train.bin",
                                              tokenizer->vocab_size()));
  SG_ASSIGN_OR_RETURN(const auto validation,
                      TokenFileWriter::Create(options.output + "/val.bin",
                                              tokenizer->vocab_size()));
  Splitter splitter(std::min(kBlockBytes, total / kHeldOutEvery), *tokenizer,
                    train.get(), validation.get());
  for (const Input& input : inputs)
    SG_RETURN_IF_ERROR(AddFile(input, total, options, &splitter));
  SG_RETURN_IF_ERROR(splitter.Finish());
  SG_RETURN_IF_ERROR(
      WriteDurableFile(absl::StrCat(options.output, "/", tokenizer->FileName()),
                       tokenizer->Description()));
  SG_RETURN_IF_ERROR(validation->Close());
  SG_RETURN_IF_ERROR(train->Close());

  PrepareResult result;
  result.files = static_cast<int64_t>(inputs.size());
  result.bytes = total;
  result.train_tokens = train->size();
  result.validation_tokens = validation->size();
  result.vocab_size = tokenizer->vocab_size();
  result.end_of_text = tokenizer->EndOfText();
  return result;
}

absl::StatusOr<PrepareOptions> ParsePrepareFlags(
    const std::vector<std::string>& arguments) {
  PrepareOptions options;
  std::string tokenizer = options.tokenizer;
  // Both kinds of inputs into one list: their order is kept.
  SG_RETURN_IF_ERROR(
      ParseFlags(kUsage, arguments,
                 {{"input", &options.inputs,
                   "a text file or a glob; may be given more than once"},
                  {"output", &options.output,
                   "folder for train.bin, val.bin and the tokenizer"},
                  {"tokenizer", &tokenizer,
                   "bytes, a tokenizer.json, a SentencePiece model, or a "
                   "folder with one; bytes"}},
                 &options.inputs));
  if (options.inputs.empty() || absl::c_linear_search(options.inputs, "")) {
    return absl::InvalidArgumentError(
        "--input is missing; say --input=FILE_OR_GLOB");
  }
  if (options.output.empty()) {
    return absl::InvalidArgumentError("--output is missing; say --output=DIR");
  }
  for (std::string& input : options.inputs) input = UserPath(input);
  options.output = UserPath(options.output);
  options.tokenizer = tokenizer == "bytes" ? tokenizer : UserPath(tokenizer);
  return options;
}

}  // namespace shardgraph
