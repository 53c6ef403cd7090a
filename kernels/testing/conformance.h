// Conformance of kernels: one table of cases per op family, every backend held
// to FP64 truth.
//
// A case names an op, its attributes and its operands. The truth is the
// reference kernel on the same values with every floating operand widened to
// F64 (so that the declared rounding points vanish). A kernel under test runs
// with results and workspace poisoned (NaN bytes), sentinels around every
// tensor and in the gaps of strided ones: once on one thread that divides loops
// unevenly, and once on three with data misaligned by one element. Both must
// give the same bits, write nothing but their results, and read no gap.
//
//   std::vector<OpCase> MatmulCases();
//   TEST(Matmul, Reference) {
//     CheckKernels(MatmulCases(), MatmulReferenceKernels(),
//                  MatmulReferenceKernels());
//   }
//   TEST(Matmul, Cpu) {
//     CheckCpuKernels(MatmulCases(), MatmulReferenceKernels(),
//                     MatmulCpuKernels());
//   }
//   TEST(Matmul, CasesAreComplete) {
//     EXPECT_EQ(CoveredOps(MatmulCases()), NamesOf(MatmulOps()));
//   }
//
// Tolerance: an element may differ from the truth by
//   store * |truth| + accumulate * max(largest |truth| of the result,
//   magnitude)
// with both factors from one table by dtype, plus, for ops with further
// rounding points, twice the largest error of the reference kernel itself.
#ifndef KERNELS_TESTING_CONFORMANCE_H_
#define KERNELS_TESTING_CONFORMANCE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attributes.h"
#include "kernels/kernel.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shardgraph {

struct OperandCase {
  OperandCase(TensorType type) : type(type) {}  // NOLINT: implicit
  OperandCase(TensorType type, double low, double high)
      : type(type), low(low), high(high) {}
  OperandCase(TensorType type, std::vector<double> values)
      : type(type), values(std::move(values)) {}

  TensorType type;  // with strides, gaps allowed where the op allows them
  double low = -1;  // uniform in [low, high]; integers inclusive
  double high = 1;
  std::vector<double> values;  // row-major; empty: drawn from the range above
  bool fixed_dtype = false;    // not widened for the truth: the op insists on
                               // this dtype, as for a scalar F32
};

struct OpCase {
  const OpDef* op = nullptr;
  Attributes attributes;  // for the truth, "dtype" becomes F64 when present
  std::vector<OperandCase> operands;  // destinations of accumulation last
  // Per result that is not tied to an operand; absent or empty: contiguous.
  std::vector<Dims> result_strides;
  // Size of the terms that are accumulated, where cancellation makes results
  // smaller than that.
  double magnitude = 0;
  // The op's header lists rounding points besides the final store.
  bool inner_rounding = false;
  int rank = 0;
  int group_size = 1;

  std::string Name() const;  // "matmul(F32[2,3], F32[3,4]) transpose_b=1"
};

// Row-major values of one result.
using ResultValues = std::vector<double>;

// Where kernels under test run when that is not in the host's memory.
class KernelDevice {
 public:
  virtual ~KernelDevice() = default;
  // A copy of `bytes` in device memory, at the same address modulo 256. Freed
  // by Clear.
  virtual char* Upload(absl::Span<const uint8_t> bytes) = 0;
  // Says that a kernel must not read these bytes before it has written them.
  virtual void MarkUnwritten(char* device, int64_t bytes) {}
  virtual void Download(const char* device, absl::Span<uint8_t> bytes) = 0;
  // Launches the kernel and waits for it.
  virtual absl::Status Run(PreparedKernel& kernel) = 0;
  // Frees what was uploaded. What follows may run in another order where the
  // order is not determined.
  virtual void Clear() = 0;
};

// Kernels, and where they run: in the host's memory unless a device is given.
struct TestKernels {
  TestKernels(absl::Span<const KernelDef> kernels,  // NOLINT: implicit
              std::shared_ptr<KernelDevice> device = nullptr)
      : kernels(kernels), device(std::move(device)) {}

  absl::Span<const KernelDef> kernels;
  std::shared_ptr<KernelDevice> device;
};

// Runs the case on `kernels` with one thread and gives the results as doubles.
// With `widen`, floating operands are F64 (except fixed_dtype): the truth.
// Failures are reported to GoogleTest; the result is then empty.
std::vector<ResultValues> Evaluate(const OpCase& op_case,
                                   const TestKernels& kernels, bool widen);

// Checks every case as described at the top. A kernel may decline a case with
// F16 or F64 tensors (Unimplemented from `supports`); F32 and BF16 are a must.
void CheckKernels(absl::Span<const OpCase> cases,
                  absl::Span<const KernelDef> reference,
                  absl::Span<const KernelDef> kernels);

// CheckKernels in the memory of a device: aligned twice, with the same bits,
// and misaligned.
void CheckDeviceKernels(absl::Span<const OpCase> cases,
                        absl::Span<const KernelDef> reference,
                        absl::Span<const KernelDef> kernels,
                        KernelDevice& device);

// CheckKernels on each CpuTarget that this processor runs.
void CheckCpuKernels(absl::Span<const OpCase> cases,
                     absl::Span<const KernelDef> reference,
                     absl::Span<const KernelDef> kernels);

// Names of the ops that have a case, a kernel, or are in a family's list. The
// three sets of a family must be equal.
std::set<std::string> CoveredOps(absl::Span<const OpCase> cases);
std::set<std::string> CoveredOps(absl::Span<const KernelDef> kernels);
std::set<std::string> NamesOf(absl::Span<const OpDef* const> ops);

// `count` values in [low, high], the same on every run; for operands that a
// test needs to know.
std::vector<double> UniformValues(int64_t count, double low, double high,
                                  uint64_t seed);

}  // namespace shardgraph

#endif  // KERNELS_TESTING_CONFORMANCE_H_
