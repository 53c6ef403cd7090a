// TokenFile: a memory-mapped file of tokens, in the formats people have.
//
// - llm.c GPT-2: 256 x i32 header (20240520, 1, count), then u16 tokens; what
//   `prepare` writes.
// - llm.c Llama-3: 256 x i32 header (20240801, 7, count), then u32 tokens.
// - nanoGPT: u16 tokens without a header.
//
// Little-endian. Read only; safe to use from several threads.
#ifndef FSDP_DATA_TOKEN_FILE_H_
#define FSDP_DATA_TOKEN_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

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
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(
      const std::string& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // tokens

  // Copies tokens [begin, begin + out.size()), each checked to be below
  // `vocab_size`: InvalidArgument names file, position, token and the remedy.
  absl::Status Read(int64_t begin, int64_t vocab_size,
                    absl::Span<int32_t> out) const;

 private:
  TokenFile() = default;

  std::string path_;
  const char* map_ = nullptr;
  int64_t map_bytes_ = 0;
  const char* tokens_ = nullptr;
  int token_bytes_ = 2;
  int64_t size_ = 0;
};

// Appends tokens to a file in llm.c's GPT-2 format. The file appears under its
// name when Close has succeeded, never half written.
class TokenFileWriter {
 public:
  // InvalidArgument: `path` cannot be written.
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(
      const std::string& path);

  absl::Status Append(absl::Span<const uint16_t> tokens);
  int64_t size() const { return size_; }
  absl::Status Close();

 private:
  TokenFileWriter() = default;

  std::string path_;
  std::unique_ptr<DurableFile> file_;
  int64_t size_ = 0;
};

}  // namespace shardgraph

#endif  // FSDP_DATA_TOKEN_FILE_H_
