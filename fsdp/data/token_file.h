// TokenFile: a memory-mapped file of tokens, in the formats people have.
//
// - llm.c GPT-2: 256 x i32 header (20240520, 1, count), then u16 tokens; what
//   `prepare` writes.
// - llm.c Llama-3: 256 x i32 header (20240801, 7, count), then u32 tokens; what
//   `prepare` writes for large vocabularies.
// - nanoGPT: u16 tokens without a header.
// - Megatron: NAME.bin, tokens without a header, and NAME.idx
// (megatron_index.h)
//   beside it, which makes it one.
//
// Little-endian. Read only; safe to use from several threads.
#ifndef FSDP_DATA_TOKEN_FILE_H_
#define FSDP_DATA_TOKEN_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fsdp/files/durable_file.h"

namespace shardgraph {

class TokenFile {
 public:
  // InvalidArgument names the file, what is wrong with it (missing, empty,
  // truncated, an unknown version) and the remedy.
  // A Megatron file may be given by either of its names.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(
      const std::string& path);
  // The same of a file in memory, which outlives it; `index`: what Megatron's
  // .idx beside it holds, if there is one.
  static absl::StatusOr<std::unique_ptr<TokenFile>> OverMemory(
      absl::string_view file, std::optional<absl::string_view> index);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // tokens
  // The first token of each document, ascending, where the file says so; empty:
  // it does not.
  const std::vector<int64_t>& document_starts() const {
    return document_starts_;
  }

  // Copies tokens [begin, begin + out.size()), each checked to be below
  // `vocab_size`: InvalidArgument names file, position, token and the remedy.
  absl::Status Read(int64_t begin, int64_t vocab_size,
                    absl::Span<int32_t> out) const;

 private:
  TokenFile() = default;
  // Maps path_ into file_.
  absl::Status Map();
  // Finds the tokens in file_, by its header, or by the index beside it.
  absl::Status TakeHeader();
  absl::Status TakeIndex(const std::string& path, absl::string_view index);

  std::string path_;
  absl::string_view file_;
  bool mapped_ = false;
  const char* tokens_ = nullptr;
  int token_bytes_ = 2;
  bool is_signed_ = false;
  int64_t size_ = 0;
  std::vector<int64_t> document_starts_;
};

// Appends tokens to a file in llm.c's formats: GPT-2's, or Llama-3's for
// vocabularies beyond 65,536. The file appears under its name when Close has
// succeeded, never half written.
class TokenFileWriter {
 public:
  // InvalidArgument: `path` cannot be written.
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(
      const std::string& path, int64_t vocab_size);

  // Each token is in [0, vocab_size).
  absl::Status Append(absl::Span<const int32_t> tokens);
  int64_t size() const { return size_; }
  absl::Status Close();

 private:
  TokenFileWriter() = default;

  std::string path_;
  std::unique_ptr<DurableFile> file_;
  bool wide_ = false;  // u32
  int64_t size_ = 0;
  std::vector<uint16_t> narrow_;
};

}  // namespace shardgraph

#endif  // FSDP_DATA_TOKEN_FILE_H_
