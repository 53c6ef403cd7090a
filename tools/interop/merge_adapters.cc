#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/huggingface.h"
#include "graph/model/defaults.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "tools/interop/adapters.h"

namespace shardgraph {
namespace {

using WeightTensor = SafetensorsWriter::Tensor;

// Elements [begin, begin + values.size()) of a tensor.
absl::Status ReadFloats(WeightSource& source, size_t tensor, int64_t begin,
                        absl::Span<float> values) {
  const DType dtype = source.tensors()[tensor].dtype;
  std::vector<char> bytes(values.size() * SizeOf(dtype));
  SG_RETURN_IF_ERROR(source.Read(tensor, begin, absl::MakeSpan(bytes)));
  ReadAsFloat(dtype, absl::string_view(bytes.data(), bytes.size()), 0, values);
  return absl::OkStatus();
}

class MergedSource : public WeightSource {
 public:
  MergedSource(std::unique_ptr<WeightSource> source, const Model& model,
               double scale)
      : source_(std::move(source)), scale_(static_cast<float>(scale)) {
    std::map<std::string, size_t> index;
    for (size_t i = 0; i < source_->tensors().size(); ++i)
      index[std::string(source_->tensors()[i].name)] = i;
    for (size_t i = 0; i < source_->tensors().size(); ++i) {
      const WeightTensor& tensor = source_->tensors()[i];
      if (absl::EndsWith(tensor.name, kAdapterA) ||
          absl::EndsWith(tensor.name, kAdapterB))
        continue;
      Merged merged;
      merged.tensor = i;
      std::string module(tensor.name);
      if (absl::EndsWith(module, ".weight")) {
        module.resize(module.size() - 7);
        const auto a = index.find(absl::StrCat(module, kAdapterA));
        if (a != index.end()) {
          merged.a = static_cast<int64_t>(a->second);
          merged.b =
              static_cast<int64_t>(index.at(absl::StrCat(module, kAdapterB)));
          merged.input_major = IsInputMajor(model.root(), module);
        }
      }
      merged_.push_back(merged);
      tensors_.push_back(tensor);
    }
  }

  absl::Span<const WeightTensor> tensors() const override { return tensors_; }
  absl::Status Read(size_t tensor, int64_t begin,
                    absl::Span<char> bytes) override {
    const Merged& merged = merged_[tensor];
    if (merged.a < 0) return source_->Read(merged.tensor, begin, bytes);
    SG_RETURN_IF_ERROR(Load(merged));
    const DType dtype = tensors_[tensor].dtype;
    std::vector<float> values(bytes.size() / SizeOf(dtype));
    SG_RETURN_IF_ERROR(
        ReadFloats(*source_, merged.tensor, begin, absl::MakeSpan(values)));
    const int64_t columns = tensors_[tensor].shape[1];
    for (size_t i = 0; i < values.size(); ++i) {
      int64_t out = (begin + i) / columns, in = (begin + i) % columns;
      if (merged.input_major) std::swap(out, in);
      float sum = 0;
      for (int64_t r = 0; r < rank_; ++r)
        sum += b_[out * rank_ + r] * a_[r * inputs_ + in];
      values[i] += scale_ * sum;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t half = dtype == DType::kBF16 ? BFloat16(values[i]).bits
                                                  : Float16(values[i]).bits;
      if (dtype == DType::kF32) {
        std::memcpy(&bytes[i * 4], &values[i], 4);
      } else {
        SG_CHECK(SizeOf(dtype) == 2);
        std::memcpy(&bytes[i * 2], &half, 2);
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Merged {
    size_t tensor = 0;       // of source_
    int64_t a = -1, b = -1;  // its adapter, if it has one
    bool input_major = false;
  };

  // The adapter's matrices.
  absl::Status Load(const Merged& merged) {
    if (loaded_ == merged.a) return absl::OkStatus();
    const Dims& shape = source_->tensors()[merged.a].shape;
    rank_ = shape[0];
    inputs_ = shape[1];
    a_.resize(NumElements(shape));
    b_.resize(NumElements(source_->tensors()[merged.b].shape));
    SG_RETURN_IF_ERROR(ReadFloats(*source_, merged.a, 0, absl::MakeSpan(a_)));
    SG_RETURN_IF_ERROR(ReadFloats(*source_, merged.b, 0, absl::MakeSpan(b_)));
    loaded_ = merged.a;
    return absl::OkStatus();
  }

  std::unique_ptr<WeightSource> source_;
  const float scale_;
  std::vector<WeightTensor> tensors_;
  std::vector<Merged> merged_;  // as tensors_
  int64_t loaded_ = -1;         // the adapter in a_ and b_
  int64_t rank_ = 0, inputs_ = 0;
  std::vector<float> a_, b_;
};

}  // namespace

bool IsInputMajor(const Module& root, absl::string_view module) {
  if (root.name() == module && root.children().empty())
    return root.class_name() == "Conv1D";
  return std::any_of(
      root.children().begin(), root.children().end(),
      [&](const auto& child) { return IsInputMajor(*child, module); });
}

absl::Status MergeAdapters(ModelWeights* weights) {
  if (!weights->model->has_adapters()) return absl::OkStatus();
  ModelSpec* spec = weights->config.mutable_model();
  weights->source = std::make_unique<MergedSource>(
      std::move(weights->source), *weights->model, LoraScale(spec->lora()));
  spec->clear_lora();
  SG_ASSIGN_OR_RETURN(weights->model, MakeModel(*spec));
  return absl::OkStatus();
}

}  // namespace shardgraph
