// The cases of kernel benchmarks, the same for every backend.
#ifndef KERNELS_BENCHMARK_KERNEL_CASES_H_
#define KERNELS_BENCHMARK_KERNEL_CASES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/benchmark/large_pages.h"
#include "kernels/kernel.h"
#include "kernels/tensor.h"

namespace shardgraph {

struct KernelCase {
  std::string name;  // "norm/layer_norm"
  std::string op;
  Attributes attributes;
  std::vector<TensorType> operands;
  std::vector<Dims> result_strides = {};
  double bytes = 0;  // moved; 0: all operands and results once
};

// Shapes of gpt2_124m and llama3_8b, in BF16, with `tokens` rows.
std::vector<KernelCase> KernelCases(int64_t tokens);

// Makes tensors of a case with small numbers everywhere: valid scalars, ids,
// powers and shards.
class TensorMaker {
 public:
  virtual ~TensorMaker() = default;
  virtual Tensor Make(const TensorType& type) = 0;

 protected:
  static void Fill(const TensorType& type, void* data);
};

class HostMemory final : public TensorMaker {
 public:
  Tensor Make(const TensorType& type) override;

 private:
  std::vector<LargePages> memory_;
};

// A kernel of a table, prepared for a case. `c`, the table and the memory
// outlive it.
class BoundKernelCase {
 public:
  BoundKernelCase(const KernelCase& c, const KernelTable& kernels,
                  TensorMaker& memory);

  PreparedKernel& kernel() const { return *kernel_; }
  double bytes() const { return bytes_; }
  double flops() const { return flops_; }  // of matrix products

 private:
  std::unique_ptr<PreparedKernel> kernel_;
  double bytes_ = 0, flops_ = 0;
};

}  // namespace shardgraph

#endif  // KERNELS_BENCHMARK_KERNEL_CASES_H_
