// KernelDef: how one backend computes one op, and PreparedKernel: an instance
// bound to memory, ready to launch.
#ifndef KERNELS_KERNEL_H_
#define KERNELS_KERNEL_H_

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/attributes.h"
#include "kernels/lane.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shardgraph {

class Communicator;

// An op instance with its memory. Results tied to operands have the same data
// pointer.
struct KernelContext {
  const OpDef* op = nullptr;
  const Attributes* attributes = nullptr;
  absl::Span<const Tensor> operands;
  absl::Span<const Tensor> results;
  Tensor workspace;  // U8, the size that KernelDef::workspace asked for,
                     // 256-byte aligned
  Communicator* communicator =
      nullptr;   // of the attribute "group"; null for ops without one
  int rank = 0;  // this rank within that group; 0 without one
  int group_size = 1;
};

class PreparedKernel {
 public:
  virtual ~PreparedKernel() = default;
  // No allocation, no sync with the host, no host branch on tensor data.
  // Collectives may fail (a lost peer); compute kernels return OK.
  virtual absl::Status Launch(Lane& lane) = 0;
};

struct KernelDef {
  absl::string_view op;  // name of the OpDef

  // Whether this kernel can run these types; Unimplemented with a reason
  // otherwise. Null: everything the op allows.
  absl::Status (*supports)(const Attributes& attributes,
                           absl::Span<const TensorType> operands,
                           absl::Span<const TensorType> results) = nullptr;

  // Bytes of scratch memory that a launch needs. Null: none.
  int64_t (*workspace)(const Attributes& attributes,
                       absl::Span<const TensorType> operands,
                       absl::Span<const TensorType> results) = nullptr;

  // Binds an instance. May allocate and build library plans. Pointers in
  // `context` stay valid as long as the kernel; the spans themselves do not:
  // copy what is needed.
  absl::StatusOr<std::unique_ptr<PreparedKernel>> (*prepare)(
      const KernelContext& context) = nullptr;
};

// A PreparedKernel from a callable of signature void(Lane&) or
// absl::Status(Lane&).
template <typename F>
std::unique_ptr<PreparedKernel> MakeKernel(F f) {
  class Impl final : public PreparedKernel {
   public:
    explicit Impl(F f) : f_(std::move(f)) {}
    absl::Status Launch(Lane& lane) override {
      if constexpr (std::is_void_v<decltype(f_(lane))>) {
        f_(lane);
        return absl::OkStatus();
      } else {
        return f_(lane);
      }
    }

   private:
    F f_;
  };
  return std::make_unique<Impl>(std::move(f));
}

// The kernels of one backend, found by op name; built once from explicit lists.
class KernelTable {
 public:
  // Later lists win over earlier ones for the same op and types: FindSupporting
  // tries the last list first.
  explicit KernelTable(std::vector<absl::Span<const KernelDef>> lists)
      : lists_(std::move(lists)) {}

  // The kernel for these types; NotFound or Unimplemented naming the op, the
  // types and the reason.
  absl::StatusOr<const KernelDef*> Find(
      absl::string_view op, const Attributes& attributes,
      absl::Span<const TensorType> operands,
      absl::Span<const TensorType> results) const;
  // True when some kernel of that op exists, whatever the types.
  bool Has(absl::string_view op) const;

 private:
  std::vector<absl::Span<const KernelDef>> lists_;
};

}  // namespace shardgraph

#endif  // KERNELS_KERNEL_H_
