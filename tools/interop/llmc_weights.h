// LlmcWeights: a model file of llm.c, mapped: a header and then tensor after
// tensor.
#ifndef TOOLS_INTEROP_LLMC_WEIGHTS_H_
#define TOOLS_INTEROP_LLMC_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/weight_source.h"
#include "graph/model/module.h"
#include "kernels/tensor.h"
#include "tools/interop/model_weights.h"

namespace shardgraph {

// How the elements of one of our tensors lie in the file.
enum class LlmcOrder {
  kSame,
  kTransposed,   // [out, in], ours [in, out]
  kInterleaved,  // rows of a head: 0, half, 1, half + 1, ... of ours
};

class LlmcWeights : public WeightSource {
 public:
  using WeightTensor = SafetensorsWriter::Tensor;

  // Maps the file. Errors, here and below, name it.
  static absl::StatusOr<std::unique_ptr<LlmcWeights>> Open(
      const std::string& path);
  ~LlmcWeights() override;

  absl::string_view file() const { return absl::string_view(map_, bytes_); }
  absl::Status Wrong(absl::string_view what) const;

  // The tensors of `model`, all of one dtype; the first begins after
  // `header_bytes`.
  void Begin(const Model& model, DType dtype, int64_t header_bytes);
  // The tensor that is next in the file. `heads` of kInterleaved; `stored`:
  // elements that it takes there, where they are more than it has.
  void Next(const std::string& name, LlmcOrder order = LlmcOrder::kSame,
            int64_t heads = 1, int64_t stored = 0);
  // All have been placed, and the file ends where the last does.
  absl::Status End() const;

  absl::Span<const WeightTensor> tensors() const override { return tensors_; }
  absl::Status Read(size_t tensor, int64_t begin,
                    absl::Span<char> bytes) override;

 private:
  struct Place {
    int64_t offset = 0;  // bytes
    LlmcOrder order = LlmcOrder::kSame;
    int64_t heads = 1;
  };

  LlmcWeights() = default;

  std::string path_;
  const char* map_ = nullptr;
  int64_t bytes_ = 0;
  int64_t at_ = 0;
  std::map<std::string, size_t> number_of_;
  std::vector<WeightTensor> tensors_;
  std::vector<Place> places_;
};

// Each of a file that begins with its number; the sizes in it are trusted in
// nothing.
absl::StatusOr<ModelWeights> OpenLlmcGpt2(std::unique_ptr<LlmcWeights> weights);
absl::StatusOr<ModelWeights> OpenLlmcLlama(
    std::unique_ptr<LlmcWeights> weights);

// The dtype of a version; InvalidArgument when it is neither of F32 and BF16.
absl::StatusOr<DType> LlmcDType(const LlmcWeights& weights, int32_t version);

}  // namespace shardgraph

#endif  // TOOLS_INTEROP_LLMC_WEIGHTS_H_
