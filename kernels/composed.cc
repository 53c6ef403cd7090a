#include "kernels/composed.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/check.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

Composition::Composition(absl::Span<const TensorType> operands,
                         absl::Span<const TensorType> results)
    : num_operands_(static_cast<int>(operands.size())),
      types_(operands.begin(), operands.end()) {
  types_.insert(types_.end(), results.begin(), results.end());
}

int Composition::AddTensor(TensorType type) {
  offsets_.push_back(bytes_);
  bytes_ += (type.span_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  types_.push_back(std::move(type));
  return static_cast<int>(types_.size()) - 1;
}

void Composition::Add(absl::string_view op, Attributes attributes,
                      std::vector<int> operands, std::vector<int> results) {
  const OpDef* const found = FindOp(op);
  SG_CHECK(found != nullptr) << std::string(op);
  parts_.push_back(
      {found, std::move(attributes), std::move(operands), std::move(results)});
}

std::vector<TensorType> Composition::TypesOf(
    const std::vector<int>& tensors) const {
  std::vector<TensorType> types;
  for (int tensor : tensors) types.push_back(types_[tensor]);
  return types;
}

absl::StatusOr<const KernelDef*> Composition::Find(const KernelTable& table,
                                                   const Part& part) const {
  return table.Find(part.op->name, part.attributes, TypesOf(part.operands),
                    TypesOf(part.results));
}

absl::Status Composition::Supports(const KernelTable& table) const {
  for (const Part& part : parts_)
    SG_RETURN_IF_ERROR(Find(table, part).status());
  return absl::OkStatus();
}

int64_t Composition::Workspace(const KernelTable& table) const {
  int64_t largest = 0;
  for (const Part& part : parts_) {
    const absl::StatusOr<const KernelDef*> kernel = Find(table, part);
    SG_CHECK_OK(kernel);
    if ((*kernel)->workspace == nullptr) continue;
    largest = std::max(
        largest, (*kernel)->workspace(part.attributes, TypesOf(part.operands),
                                      TypesOf(part.results)));
  }
  return bytes_ + largest;
}

class Composition::Instance final : public PreparedKernel {
 public:
  explicit Instance(Composition composition)
      : composition_(std::move(composition)) {}

  absl::Status Prepare(const KernelTable& table, const KernelContext& context) {
    std::vector<Tensor> tensors(context.operands.begin(),
                                context.operands.end());
    tensors.insert(tensors.end(), context.results.begin(),
                   context.results.end());
    char* const workspace = context.workspace.as<char>();
    for (const int64_t offset : composition_.offsets_)
      tensors.push_back(
          {workspace + offset, composition_.type(tensors.size())});
    const auto select = [&](const std::vector<int>& wanted) {
      std::vector<Tensor> selected;
      for (int tensor : wanted) selected.push_back(tensors[tensor]);
      return selected;
    };
    const int64_t bytes = composition_.bytes_;
    for (const Part& part : composition_.parts_) {
      SG_ASSIGN_OR_RETURN(const KernelDef* kernel,
                          composition_.Find(table, part));
      const std::vector<Tensor> operands = select(part.operands);
      const std::vector<Tensor> results = select(part.results);
      KernelContext inner = context;
      inner.op = part.op;
      inner.attributes = &part.attributes;
      inner.operands = operands;
      inner.results = results;
      inner.workspace =
          Tensor{workspace + bytes,
                 TensorType(DType::kU8,
                            {context.workspace.type.num_elements() - bytes})};
      SG_ASSIGN_OR_RETURN(kernels_.emplace_back(), kernel->prepare(inner));
    }
    return absl::OkStatus();
  }

  absl::Status Launch(Lane& lane) override {
    for (const std::unique_ptr<PreparedKernel>& kernel : kernels_)
      SG_RETURN_IF_ERROR(kernel->Launch(lane));
    return absl::OkStatus();
  }

 private:
  const Composition composition_;  // holds the parts' attributes
  std::vector<std::unique_ptr<PreparedKernel>> kernels_;  // of the parts
};

absl::StatusOr<std::unique_ptr<PreparedKernel>> Composition::Prepare(
    const KernelTable& table, Composition composition,
    const KernelContext& context) {
  auto instance = std::make_unique<Instance>(std::move(composition));
  SG_RETURN_IF_ERROR(instance->Prepare(table, context));
  return instance;
}

std::vector<TensorType> TypesOf(absl::Span<const Tensor> tensors) {
  std::vector<TensorType> types;
  for (const Tensor& tensor : tensors) types.push_back(tensor.type);
  return types;
}

}  // namespace shardgraph
