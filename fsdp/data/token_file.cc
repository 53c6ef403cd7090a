#include "fsdp/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/data/megatron_index.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr char kMegatronEnding[] = ".bin", kIndexEnding[] = ".idx";
constexpr int64_t kHeaderInts = 256;
constexpr int64_t kHeaderBytes = kHeaderInts * 4;
constexpr int32_t kGpt2Magic = 20240520, kGpt2Version = 1;
constexpr int32_t kLlama3Magic = 20240801, kLlama3Version = 7;

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("token file ", path, ": ", what));
}

absl::string_view BytesOf(const void* data, size_t bytes) {
  return absl::string_view(static_cast<const char*>(data), bytes);
}

}  // namespace

absl::Status TokenFile::Map() {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Wrong(
        path_,
        absl::StrCat(strerror(errno),
                     "; make token files with `bazel run //tools:prepare`"));
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Wrong(path_, "not a regular file");
  }
  if (info.st_size == 0) {
    close(fd);
    return Wrong(path_,
                 "empty; make token files with `bazel run //tools:prepare`");
  }
  void* map = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, fd, 0);
  const int map_error = errno;
  close(fd);
  if (map == MAP_FAILED)
    return Wrong(path_, absl::StrCat("cannot map it: ", strerror(map_error)));
  file_ = absl::string_view(static_cast<const char*>(map), info.st_size);
  mapped_ = true;
  return absl::OkStatus();
}

absl::Status TokenFile::TakeIndex(const std::string& path,
                                  absl::string_view index) {
  absl::StatusOr<MegatronIndex> parsed =
      ParseMegatronIndex(index, static_cast<int64_t>(file_.size()));
  if (!parsed.ok()) return Wrong(path, parsed.status().message());
  tokens_ = file_.data();
  token_bytes_ = parsed->token_bytes;
  is_signed_ = parsed->is_signed;
  size_ = parsed->tokens;
  document_starts_ = std::move(parsed->document_starts);
  return absl::OkStatus();
}

absl::Status TokenFile::TakeHeader() {
  const int64_t bytes = static_cast<int64_t>(file_.size());
  int32_t header[3] = {};
  if (bytes >= static_cast<int64_t>(sizeof(header)))
    std::memcpy(header, file_.data(), sizeof(header));
  const bool gpt2 = header[0] == kGpt2Magic, llama3 = header[0] == kLlama3Magic;
  if (!gpt2 && !llama3) {  // nanoGPT
    if (bytes % 2 != 0) {
      return Wrong(
          path_,
          absl::StrCat(bytes,
                       " bytes without a known header are no u16 tokens; if "
                       "this is text, ",
                       "turn it into tokens with `bazel run //tools:prepare`"));
    }
    tokens_ = file_.data();
    size_ = bytes / 2;
    return absl::OkStatus();
  }
  const int32_t expected = gpt2 ? kGpt2Version : kLlama3Version;
  if (header[1] != expected) {
    return Wrong(
        path_, absl::StrCat("version ", header[1], " of the format ", header[0],
                            "; only version ", expected, " is known"));
  }
  token_bytes_ = gpt2 ? 2 : 4;
  size_ = header[2];
  const int64_t need = kHeaderBytes + size_ * token_bytes_;
  if (header[2] < 0 || bytes < need) {
    return Wrong(path_, absl::StrCat("truncated: its header says ", header[2],
                                     " tokens, ", need, " bytes, but it has ",
                                     bytes, "; make it again"));
  }
  tokens_ = file_.data() + kHeaderBytes;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(
    const std::string& path) {
  const absl::string_view stem =
      absl::StripSuffix(absl::StripSuffix(path, kIndexEnding), kMegatronEnding);
  const std::string index_path = absl::StrCat(stem, kIndexEnding);
  struct stat info = {};
  const bool megatron =
      stem.size() < path.size() && stat(index_path.c_str(), &info) == 0;
  std::unique_ptr<TokenFile> file(new TokenFile());
  file->path_ = megatron ? absl::StrCat(stem, kMegatronEnding) : path;
  SG_RETURN_IF_ERROR(file->Map());
  if (megatron) {
    TokenFile index;
    index.path_ = index_path;
    SG_RETURN_IF_ERROR(index.Map());
    SG_RETURN_IF_ERROR(file->TakeIndex(index_path, index.file_));
  } else {
    SG_RETURN_IF_ERROR(file->TakeHeader());
  }
  return file;
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::OverMemory(
    absl::string_view file, std::optional<absl::string_view> index) {
  std::unique_ptr<TokenFile> result(new TokenFile());
  result->path_ = "in memory";
  result->file_ = file;
  SG_RETURN_IF_ERROR(index.has_value()
                         ? result->TakeIndex("index in memory", *index)
                         : result->TakeHeader());
  return result;
}

TokenFile::~TokenFile() {
  if (mapped_) munmap(const_cast<char*>(file_.data()), file_.size());
}

absl::Status TokenFile::Read(int64_t begin, int64_t vocab_size,
                             absl::Span<int32_t> out) const {
  if (begin < 0 || begin + static_cast<int64_t>(out.size()) > size_) {
    return absl::OutOfRangeError(
        absl::StrCat("token file ", path_, ": tokens [", begin, ", ",
                     begin + out.size(), ") of ", size_));
  }
  const char* from = tokens_ + begin * token_bytes_;
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t token = 0;
    std::memcpy(&token, from + i * token_bytes_, token_bytes_);
    if (is_signed_) {
      const int unused = 64 - 8 * token_bytes_;
      token = static_cast<int64_t>(static_cast<uint64_t>(token) << unused) >>
              unused;
    }
    if (token < 0 || token >= vocab_size) {
      return Wrong(
          path_,
          absl::StrCat("token ", token, " at position ", begin + i,
                       " is outside the vocabulary of ", vocab_size,
                       "; set the model's vocab_size to at least ",
                       std::max(token, vocab_size) + 1,
                       ", use the tokenizer that the model was made for, or, "
                       "if this is text, turn it into tokens with `bazel run "
                       "//tools:prepare`"));
    }
    out[i] = static_cast<int32_t>(token);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TokenFileWriter>> TokenFileWriter::Create(
    const std::string& path, int64_t vocab_size) {
  absl::StatusOr<std::unique_ptr<DurableFile>> file = DurableFile::Create(path);
  if (!file.ok()) return absl::InvalidArgumentError(file.status().message());
  std::unique_ptr<TokenFileWriter> writer(new TokenFileWriter());
  writer->path_ = path;
  writer->file_ = *std::move(file);
  writer->wide_ = vocab_size > int64_t{1} << 16;
  // The header comes with Close.
  SG_RETURN_IF_ERROR(writer->file_->Append(std::string(kHeaderBytes, '\0')));
  return writer;
}

absl::Status TokenFileWriter::Append(absl::Span<const int32_t> tokens) {
  if (size_ + static_cast<int64_t>(tokens.size()) >
      std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_,
        ": more than 2^31 - 1 tokens do not fit one file; split the input"));
  }
  size_ += tokens.size();
  if (wide_) return file_->Append(BytesOf(tokens.data(), tokens.size() * 4));
  narrow_.assign(tokens.begin(), tokens.end());
  return file_->Append(BytesOf(narrow_.data(), narrow_.size() * 2));
}

absl::Status TokenFileWriter::Close() {
  const int32_t header[3] = {wide_ ? kLlama3Magic : kGpt2Magic,
                             wide_ ? kLlama3Version : kGpt2Version,
                             static_cast<int32_t>(size_)};
  SG_RETURN_IF_ERROR(file_->WriteAt(0, BytesOf(header, sizeof(header))));
  return file_->Commit();
}

}  // namespace shardgraph
