#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "tools/interop/model_weights.h"

namespace shardgraph {
namespace {

using WeightTensor = SafetensorsWriter::Tensor;

constexpr int64_t kHeaderBytes = 256 * 4;
constexpr int32_t kMagic = 20240326, kF32Version = 3, kBF16Version = 5;
constexpr int32_t kLlamaMagic = 20240803;

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("llm.c model ", path, ": ", what));
}

// One tensor of every layer, or of the model: its name behind
// "transformer.h.N." (or "transformer."), and whether it is stored transposed.
struct Part {
  const char* name;
  bool per_layer;
  bool transposed;
};

// In the file's order.
constexpr Part kParts[] = {
    {"wte.weight", false, false},       {"wpe.weight", false, false},
    {"ln_1.weight", true, false},       {"ln_1.bias", true, false},
    {"attn.c_attn.weight", true, true}, {"attn.c_attn.bias", true, false},
    {"attn.c_proj.weight", true, true}, {"attn.c_proj.bias", true, false},
    {"ln_2.weight", true, false},       {"ln_2.bias", true, false},
    {"mlp.c_fc.weight", true, true},    {"mlp.c_fc.bias", true, false},
    {"mlp.c_proj.weight", true, true},  {"mlp.c_proj.bias", true, false},
    {"ln_f.weight", false, false},      {"ln_f.bias", false, false}};

class LlmcWeights : public WeightSource {
 public:
  // Maps the file.
  static absl::StatusOr<std::unique_ptr<LlmcWeights>> Open(
      const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return Wrong(path, strerror(errno));
    std::unique_ptr<LlmcWeights> weights(new LlmcWeights());
    struct stat info = {};
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
      void* map = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, file, 0);
      if (map != MAP_FAILED) {
        weights->map_ = static_cast<const char*>(map);
        weights->bytes_ = info.st_size;
      }
    }
    close(file);
    if (weights->map_ == nullptr) return Wrong(path, "it cannot be mapped");
    return weights;
  }
  ~LlmcWeights() override {
    if (map_ != nullptr) munmap(const_cast<char*>(map_), bytes_);
  }

  absl::string_view file() const { return absl::string_view(map_, bytes_); }

  // Where each tensor of the model is; `padded` rows of the token table are
  // stored.
  absl::Status Lay(const std::string& path, const Model& model, int layers,
                   int64_t padded, DType dtype) {
    std::map<std::string, size_t> number_of;
    for (const Parameter* parameter : model.parameters()) {
      number_of[parameter->name] = tensors_.size();
      tensors_.push_back({parameter->name, dtype, parameter->shape});
    }
    places_.resize(tensors_.size());
    int64_t at = kHeaderBytes;
    for (const Part& part : kParts) {
      for (int layer = 0; layer < (part.per_layer ? layers : 1); ++layer) {
        const size_t number = number_of.at(
            part.per_layer
                ? absl::StrCat("transformer.h.", layer, ".", part.name)
                : absl::StrCat("transformer.", part.name));
        places_[number] = {at, part.transposed};
        const Dims& shape = tensors_[number].shape;
        const int64_t elements = absl::StartsWith(part.name, "wte")
                                     ? padded * shape[1]
                                     : NumElements(shape);
        at += elements * SizeOf(dtype);
      }
    }
    if (at == bytes_) return absl::OkStatus();
    return Wrong(
        path, absl::StrCat(
                  "it has ", bytes_, " bytes, but its header asks for ", at,
                  at > bytes_ ? ": it is truncated" : ": bytes are left over"));
  }

  absl::Span<const WeightTensor> tensors() const override { return tensors_; }
  absl::Status Read(size_t tensor, int64_t begin,
                    absl::Span<char> bytes) override {
    const WeightTensor& described = tensors_[tensor];
    const int64_t size = SizeOf(described.dtype);
    const char* from = map_ + places_[tensor].offset;
    if (!places_[tensor].transposed) {
      std::memcpy(bytes.data(), from + begin * size, bytes.size());
      return absl::OkStatus();
    }
    // Ours [in, out], stored [out, in].
    const int64_t in = described.shape[0], out = described.shape[1];
    const int64_t elements = bytes.size() / size;
    for (int64_t i = 0; i < elements; ++i) {
      const int64_t row = (begin + i) / out, column = (begin + i) % out;
      std::memcpy(&bytes[i * size], from + (column * in + row) * size, size);
    }
    return absl::OkStatus();
  }

 private:
  struct Place {
    int64_t offset = 0;  // bytes
    bool transposed = false;
  };

  LlmcWeights() = default;

  const char* map_ = nullptr;
  int64_t bytes_ = 0;
  std::vector<WeightTensor> tensors_;
  std::vector<Place> places_;
};

}  // namespace

absl::StatusOr<ModelWeights> OpenLlmcModel(const std::string& path) {
  SG_ASSIGN_OR_RETURN(std::unique_ptr<LlmcWeights> weights,
                      LlmcWeights::Open(path));
  int32_t header[8] = {};
  if (weights->file().size() < kHeaderBytes)
    return Wrong(path, "it is shorter than a header of 1024 bytes");
  std::memcpy(header, weights->file().data(), sizeof(header));
  if (header[0] != kMagic) {
    return Wrong(path, absl::StrCat("it starts with ", header[0],
                                    header[0] == kLlamaMagic
                                        ? ", a Llama; only GPT-2 can be read: "
                                          "take the Hugging Face folder it was "
                                          "made from"
                                        : absl::StrCat("; a model starts with ",
                                                       kMagic)));
  }
  if (header[1] != kF32Version && header[1] != kBF16Version) {
    return Wrong(
        path, absl::StrCat("its version is ", header[1], "; ", kF32Version,
                           " (F32) and ", kBF16Version, " (BF16) can be read"));
  }
  const int32_t vocabulary = header[3], layers = header[4], padded = header[7];
  ModelWeights result;
  Gpt2Spec* gpt2 = result.config.mutable_model()->mutable_gpt2();
  gpt2->set_n_positions(header[2]);
  gpt2->set_vocab_size(vocabulary);
  gpt2->set_n_layer(layers);
  gpt2->set_n_head(header[5]);
  gpt2->set_n_embd(header[6]);
  // What llm.c trains with.
  gpt2->set_resid_pdrop(0);
  gpt2->set_embd_pdrop(0);
  gpt2->set_attn_pdrop(0);
  for (int i = 2; i < 8; ++i) {
    if (header[i] >= 1) continue;
    return Wrong(path, absl::StrCat("number ", i, " of its header is ",
                                    header[i], "; sizes are 1 or more"));
  }
  if (padded < vocabulary) {
    return Wrong(
        path, absl::StrCat("its padded vocabulary of ", padded,
                           " is smaller than the vocabulary of ", vocabulary));
  }
  // Before sizes are multiplied: the file must hold such matrices.
  const int64_t bytes = weights->file().size(), width = header[6];
  if (width * width > bytes || header[2] * width > bytes ||
      padded * width > bytes || layers > bytes) {
    return Wrong(path, absl::StrCat("it has ", bytes,
                                    " bytes, too few for its header: it is "
                                    "truncated"));
  }
  absl::StatusOr<std::unique_ptr<Model>> model =
      MakeModel(result.config.model());
  if (!model.ok()) return Wrong(path, model.status().message());
  result.model = *std::move(model);
  SG_RETURN_IF_ERROR(
      weights->Lay(path, *result.model, layers, padded,
                   header[1] == kF32Version ? DType::kF32 : DType::kBF16));
  result.source = std::move(weights);
  return result;
}

}  // namespace shardgraph
