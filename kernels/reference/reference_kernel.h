// The frame of a reference kernel: a plain function of its operands and
// results.
//
//   void Scale(const ReferenceCall& call) {
//     for (int64_t i = 0; i < call.result(0).size(); ++i)
//       call.Store(0, i, call.operand(0).GetFlat(i) * 2);
//   }
//   constexpr KernelDef kernel = {.op = "scale",
//                                 .prepare = PrepareReference<Scale>};
#ifndef KERNELS_REFERENCE_REFERENCE_KERNEL_H_
#define KERNELS_REFERENCE_REFERENCE_KERNEL_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "kernels/reference/access.h"

namespace shardgraph {

class ReferenceCall {
 public:
  explicit ReferenceCall(const KernelContext& context)
      : attributes_(*context.attributes),
        rank_(context.rank),
        group_size_(context.group_size) {
    for (const Tensor& tensor : context.operands)
      operands_.emplace_back(tensor);
    for (const Tensor& tensor : context.results) results_.emplace_back(tensor);
  }

  const Attributes& attributes() const { return attributes_; }
  int rank() const { return rank_; }
  int group_size() const { return group_size_; }
  int num_operands() const { return static_cast<int>(operands_.size()); }
  const Elements& operand(int i) const { return operands_[i]; }
  const Elements& result(int r) const { return results_[r]; }

  // Element `index` (row-major) of result r becomes `value`, or grows by it
  // where the result accumulates.
  void Store(int r, int64_t index, double value) const {
    const bool accumulate = attributes_.Int("accumulate") >> r & 1;
    results_[r].SetFlat(accumulate ? results_[r].GetFlat(index) + value : value,
                        index);
  }

 private:
  Attributes attributes_;
  int rank_;
  int group_size_;
  std::vector<Elements> operands_;
  std::vector<Elements> results_;
};

template <void (*body)(const ReferenceCall& call)>
absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareReference(
    const KernelContext& context) {
  return MakeKernel([call = ReferenceCall(context)](Lane&) { body(call); });
}

}  // namespace shardgraph

#endif  // KERNELS_REFERENCE_REFERENCE_KERNEL_H_
