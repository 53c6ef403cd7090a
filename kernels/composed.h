// Kernels that consist of others of the same backend, run one after the other
// with what they hand on in workspace.
#ifndef KERNELS_COMPOSED_H_
#define KERNELS_COMPOSED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace shardgraph {

// How an instance of an op is composed. Tensors are numbered: its operands, its
// results, then those in its workspace.
class Composition {
 public:
  Composition(absl::Span<const TensorType> operands,
              absl::Span<const TensorType> results);

  const TensorType& type(int tensor) const { return types_[tensor]; }
  int result(int r) const { return num_operands_ + r; }
  // The number of a tensor in workspace.
  int AddTensor(TensorType type);
  // A part, behind those added before.
  void Add(absl::string_view op, Attributes attributes,
           std::vector<int> operands, std::vector<int> results);

  // Whether `table` has a kernel for every part.
  absl::Status Supports(const KernelTable& table) const;
  // Bytes, for tensors and for the parts' own; `table` must support it.
  int64_t Workspace(const KernelTable& table) const;
  // The composition of these operands and results, bound to memory.
  static absl::StatusOr<std::unique_ptr<PreparedKernel>> Prepare(
      const KernelTable& table, Composition composition,
      const KernelContext& context);

 private:
  struct Part {
    const OpDef* op;
    Attributes attributes;
    std::vector<int> operands, results;
  };
  class Instance;

  std::vector<TensorType> TypesOf(const std::vector<int>& tensors) const;
  absl::StatusOr<const KernelDef*> Find(const KernelTable& table,
                                        const Part& part) const;

  int num_operands_;
  std::vector<TensorType> types_;  // of all tensors
  std::vector<int64_t> offsets_;   // of those in workspace
  int64_t bytes_ = 0;              // of those
  std::vector<Part> parts_;
};

// The types of tensors.
std::vector<TensorType> TypesOf(absl::Span<const Tensor> tensors);

// A name as a template argument.
template <size_t kSize>
struct OpName {
  char text[kSize];
  constexpr OpName(const char (&name)[kSize]) {  // NOLINT: implicit
    for (size_t i = 0; i < kSize; ++i) text[i] = name[i];
  }
  constexpr absl::string_view name() const { return {text, kSize - 1}; }
};

// A KernelDef of `op` by kernels of a table. `compose` is
//   absl::StatusOr<Composition> (absl::string_view op, const Attributes&,
//                                absl::Span<const TensorType> operands,
//                                absl::Span<const TensorType> results),
// Unimplemented where it has none for these types.
template <const KernelTable& (*table)(), auto compose, OpName op>
constexpr KernelDef ComposedKernel() {
  return {.op = op.name(),
          .supports = [](const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         absl::Span<const TensorType> results) -> absl::Status {
            const auto composition =
                compose(op.name(), attributes, operands, results);
            if (!composition.ok()) return composition.status();
            return composition->Supports(table());
          },
          .workspace =
              [](const Attributes& attributes,
                 absl::Span<const TensorType> operands,
                 absl::Span<const TensorType> results) {
                return compose(op.name(), attributes, operands, results)
                    ->Workspace(table());
              },
          .prepare = [](const KernelContext& context)
              -> absl::StatusOr<std::unique_ptr<PreparedKernel>> {
            auto composition =
                compose(op.name(), *context.attributes,
                        TypesOf(context.operands), TypesOf(context.results));
            if (!composition.ok()) return composition.status();
            return Composition::Prepare(table(), *std::move(composition),
                                        context);
          }};
}

}  // namespace shardgraph

#endif  // KERNELS_COMPOSED_H_
