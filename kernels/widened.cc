#include "kernels/widened.h"

#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int64_t kAlignment = 256;

// An instance in F32, and where in the workspace its tensors are.
struct Wide {
  Attributes attributes;
  std::vector<TensorType> operands, results;
  std::vector<int64_t> operand_at, result_at;  // -1: where they were
  int64_t bytes = 0;
};

// The place of a tensor that becomes F32; -1 for one that stays.
int64_t Widen(TensorType* type, int64_t* bytes) {
  if (type->dtype != DType::kF16) return -1;
  *type = TensorType(DType::kF32, type->shape);
  const int64_t at = *bytes;
  *bytes += (type->span_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

Wide Widened(const OpDef& op, const Attributes& attributes,
             absl::Span<const TensorType> operands,
             absl::Span<const TensorType> results) {
  Wide wide;
  wide.attributes = attributes;
  if (attributes.String("dtype") == "F16")
    wide.attributes.SetString("dtype", "F32");
  for (TensorType type : operands) {
    wide.operand_at.push_back(Widen(&type, &wide.bytes));
    wide.operands.push_back(std::move(type));
  }
  for (size_t r = 0; r < results.size(); ++r) {
    TensorType type = results[r];
    const int tied = TiedOperand(op, attributes, operands.size(),
                                 results.size(), static_cast<int>(r));
    if (tied >= 0) {
      wide.result_at.push_back(wide.operand_at[tied]);
      type = wide.operands[tied];
    } else {
      wide.result_at.push_back(Widen(&type, &wide.bytes));
    }
    wide.results.push_back(std::move(type));
  }
  return wide;
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareCast(
    const KernelTable& table, const Tensor& from, const Tensor& to,
    Attributes* attributes) {
  attributes->SetString("dtype", DTypeName(to.type.dtype));
  const TensorType types[] = {from.type, to.type};
  SG_ASSIGN_OR_RETURN(
      const KernelDef* cast,
      table.Find("cast", *attributes, {&types[0], 1}, {&types[1], 1}));
  KernelContext context;
  context.op = FindOp("cast");
  context.attributes = attributes;
  context.operands = {&from, 1};
  context.results = {&to, 1};
  return cast->prepare(context);
}

class WidenedInstance final : public PreparedKernel {
 public:
  absl::Status Prepare(const KernelTable& table, const KernelContext& context) {
    std::vector<TensorType> operand_types, result_types;
    for (const Tensor& t : context.operands) operand_types.push_back(t.type);
    for (const Tensor& t : context.results) result_types.push_back(t.type);
    wide_ =
        Widened(*context.op, *context.attributes, operand_types, result_types);
    casts_.resize(context.operands.size() + context.results.size());
    char* const workspace = context.workspace.as<char>();
    const auto tensors = [&](absl::Span<const Tensor> given,
                             absl::Span<const TensorType> types,
                             absl::Span<const int64_t> at) {
      std::vector<Tensor> moved;
      for (size_t i = 0; i < given.size(); ++i) {
        moved.push_back(at[i] < 0 ? given[i]
                                  : Tensor{workspace + at[i], types[i]});
      }
      return moved;
    };
    const std::vector<Tensor> operands =
        tensors(context.operands, wide_.operands, wide_.operand_at);
    const std::vector<Tensor> results =
        tensors(context.results, wide_.results, wide_.result_at);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (wide_.operand_at[i] < 0 || operands[i].type.num_elements() == 0)
        continue;
      SG_ASSIGN_OR_RETURN(
          kernels_.emplace_back(),
          PrepareCast(table, context.operands[i], operands[i], &casts_[i]));
    }

    SG_ASSIGN_OR_RETURN(const KernelDef* kernel,
                        table.Find(context.op->name, wide_.attributes,
                                   wide_.operands, wide_.results));
    KernelContext inner = context;
    inner.attributes = &wide_.attributes;
    inner.operands = operands;
    inner.results = results;
    inner.workspace = Tensor{
        workspace + wide_.bytes,
        TensorType(DType::kU8,
                   {context.workspace.type.num_elements() - wide_.bytes})};
    SG_ASSIGN_OR_RETURN(kernels_.emplace_back(), kernel->prepare(inner));

    for (size_t r = 0; r < results.size(); ++r) {
      if (wide_.result_at[r] < 0 || results[r].type.num_elements() == 0)
        continue;
      SG_ASSIGN_OR_RETURN(kernels_.emplace_back(),
                          PrepareCast(table, results[r], context.results[r],
                                      &casts_[operands.size() + r]));
    }
    return absl::OkStatus();
  }

  absl::Status Launch(Lane& lane) override {
    for (const std::unique_ptr<PreparedKernel>& kernel : kernels_)
      SG_RETURN_IF_ERROR(kernel->Launch(lane));
    return absl::OkStatus();
  }

 private:
  Wide wide_;
  std::vector<Attributes> casts_;  // of each operand, then each result
  std::vector<std::unique_ptr<PreparedKernel>> kernels_;  // in order
};

const OpDef& OpNamed(absl::string_view name) {
  const OpDef* const op = FindOp(name);
  SG_CHECK(op != nullptr) << std::string(name);
  return *op;
}

}  // namespace

absl::Status WidenedSupports(const KernelTable& table, absl::string_view op,
                             const Attributes& attributes,
                             absl::Span<const TensorType> operands,
                             absl::Span<const TensorType> results) {
  const Wide wide = Widened(OpNamed(op), attributes, operands, results);
  bool widens = false;
  for (const auto* places : {&wide.operand_at, &wide.result_at}) {
    for (int64_t at : *places) widens |= at >= 0;
  }
  if (!widens) return absl::UnimplementedError("no tensor is F16");
  return table.Find(op, wide.attributes, wide.operands, wide.results).status();
}

int64_t WidenedWorkspace(const KernelTable& table, absl::string_view op,
                         const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         absl::Span<const TensorType> results) {
  const Wide wide = Widened(OpNamed(op), attributes, operands, results);
  const absl::StatusOr<const KernelDef*> kernel =
      table.Find(op, wide.attributes, wide.operands, wide.results);
  SG_CHECK_OK(kernel);
  const int64_t inner =
      (*kernel)->workspace == nullptr
          ? 0
          : (*kernel)->workspace(wide.attributes, wide.operands, wide.results);
  return wide.bytes + inner;
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareWidened(
    const KernelTable& table, const KernelContext& context) {
  auto instance = std::make_unique<WidenedInstance>();
  SG_RETURN_IF_ERROR(instance->Prepare(table, context));
  return instance;
}

}  // namespace shardgraph
