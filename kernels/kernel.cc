#include "kernels/kernel.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shardgraph {

absl::StatusOr<const KernelDef*> KernelTable::Find(
    absl::string_view op, const Attributes& attributes,
    absl::Span<const TensorType> operands,
    absl::Span<const TensorType> results) const {
  std::string reason;
  for (auto list = lists_.rbegin(); list != lists_.rend(); ++list) {
    for (const KernelDef& kernel : *list) {
      if (kernel.op != op) continue;
      if (kernel.supports == nullptr) return &kernel;
      const absl::Status status =
          kernel.supports(attributes, operands, results);
      if (status.ok()) return &kernel;
      if (reason.empty()) reason = std::string(status.message());
    }
  }
  if (reason.empty())
    return absl::NotFoundError(
        absl::StrCat("this backend has no kernel for the op ", op));
  return absl::UnimplementedError(absl::StrCat(
      "no kernel of this backend for ", op, "(",
      absl::StrJoin(
          operands, ", ",
          [](std::string* out, const TensorType& t) { *out += t.ToString(); }),
      ") ", attributes.ToString(), ": ", reason));
}

bool KernelTable::Has(absl::string_view op) const {
  for (const auto& list : lists_) {
    for (const KernelDef& kernel : list) {
      if (kernel.op == op) return true;
    }
  }
  return false;
}

}  // namespace shardgraph
