#include "tools/interop/llmc_weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int32_t kGpt2Magic = 20240326, kLlamaMagic = 20240803;
constexpr int32_t kF32Version = 3, kBF16Version = 5;

absl::Status WrongFile(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("llm.c model ", path, ": ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LlmcWeights>> LlmcWeights::Open(
    const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return WrongFile(path, strerror(errno));
  std::unique_ptr<LlmcWeights> weights(new LlmcWeights());
  weights->path_ = path;
  struct stat info = {};
  if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
    void* map = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) {
      weights->map_ = static_cast<const char*>(map);
      weights->bytes_ = info.st_size;
    }
  }
  close(file);
  if (weights->map_ == nullptr) return WrongFile(path, "it cannot be mapped");
  return weights;
}

LlmcWeights::~LlmcWeights() {
  if (map_ != nullptr) munmap(const_cast<char*>(map_), bytes_);
}

absl::Status LlmcWeights::Wrong(absl::string_view what) const {
  return WrongFile(path_, what);
}

void LlmcWeights::Begin(const Model& model, DType dtype, int64_t header_bytes) {
  for (const Parameter* parameter : model.parameters()) {
    number_of_[parameter->name] = tensors_.size();
    tensors_.push_back({parameter->name, dtype, parameter->shape});
  }
  places_.resize(tensors_.size());
  at_ = header_bytes;
}

void LlmcWeights::Next(const std::string& name, LlmcOrder order, int64_t heads,
                       int64_t stored) {
  const size_t number = number_of_.at(name);
  SG_CHECK(places_[number].offset == 0) << name << " is placed twice";
  places_[number] = {at_, order, heads};
  const WeightTensor& tensor = tensors_[number];
  at_ += std::max(stored, NumElements(tensor.shape)) * SizeOf(tensor.dtype);
}

absl::Status LlmcWeights::End() const {
  for (size_t i = 0; i < places_.size(); ++i)
    SG_CHECK(places_[i].offset > 0) << tensors_[i].name << " has no place";
  if (at_ == bytes_) return absl::OkStatus();
  return Wrong(absl::StrCat(
      "it has ", bytes_, " bytes, but its header asks for ", at_,
      at_ > bytes_ ? ": it is truncated" : ": bytes are left over"));
}

absl::Status LlmcWeights::Read(size_t tensor, int64_t begin,
                               absl::Span<char> bytes) {
  const WeightTensor& described = tensors_[tensor];
  const Place& place = places_[tensor];
  const int64_t size = SizeOf(described.dtype);
  const char* from = map_ + place.offset;
  if (place.order == LlmcOrder::kSame) {
    std::memcpy(bytes.data(), from + begin * size, bytes.size());
    return absl::OkStatus();
  }
  const int64_t rows = described.shape[0], columns = described.shape[1];
  const int64_t head = rows / place.heads, half = head / 2;
  const int64_t elements = static_cast<int64_t>(bytes.size()) / size;
  for (int64_t i = 0; i < elements; ++i) {
    const int64_t row = (begin + i) / columns, column = (begin + i) % columns;
    int64_t stored = column * rows + row;
    if (place.order == LlmcOrder::kInterleaved) {
      const int64_t in_head = row % head;
      stored = (row - in_head + in_head % half * 2 + in_head / half) * columns +
               column;
    }
    std::memcpy(&bytes[i * size], from + stored * size, size);
  }
  return absl::OkStatus();
}

absl::StatusOr<DType> LlmcDType(const LlmcWeights& weights, int32_t version) {
  if (version == kF32Version) return DType::kF32;
  if (version == kBF16Version) return DType::kBF16;
  return weights.Wrong(absl::StrCat("its version is ", version, "; ",
                                    kF32Version, " (F32) and ", kBF16Version,
                                    " (BF16) can be read"));
}

absl::StatusOr<ModelWeights> OpenLlmcModel(const std::string& path) {
  SG_ASSIGN_OR_RETURN(std::unique_ptr<LlmcWeights> weights,
                      LlmcWeights::Open(path));
  int32_t magic = 0;
  if (weights->file().size() < 1024)
    return weights->Wrong("it is shorter than a header of 1024 bytes");
  std::memcpy(&magic, weights->file().data(), sizeof(magic));
  if (magic == kGpt2Magic) return OpenLlmcGpt2(std::move(weights));
  if (magic == kLlamaMagic) return OpenLlmcLlama(std::move(weights));
  return weights->Wrong(absl::StrCat("it starts with ", magic,
                                     "; a model starts with ", kGpt2Magic,
                                     " (GPT-2) or ", kLlamaMagic, " (Llama)"));
}

}  // namespace shardgraph
