#include <memory>
#include <string>

#include "kernels/check.h"
#include "kernels/matmul/matmul.h"
#include "kernels/pointwise/scalar.h"
#include "kernels/reference/access.h"

namespace shardgraph {
namespace {

// a b (+ bias), before rounding.
class Product {
 public:
  explicit Product(const KernelContext& context)
      : transpose_a_(context.attributes->Int("transpose_a") != 0),
        transpose_b_(context.attributes->Int("transpose_b") != 0),
        has_bias_(context.attributes->Int("bias") != 0),
        a_(context.operands[0]),
        b_(context.operands[1]),
        bias_(context.operands[has_bias_ ? 2 : 0]) {}

  double At(int64_t m, int64_t n) const {
    double sum = 0;
    for (int64_t k = 0; k < a_.dim(transpose_a_ ? 0 : 1); ++k) {
      sum += (transpose_a_ ? a_.Get(k, m) : a_.Get(m, k)) *
             (transpose_b_ ? b_.Get(n, k) : b_.Get(k, n));
    }
    return has_bias_ ? sum + bias_.Get(n) : sum;
  }

 private:
  bool transpose_a_, transpose_b_, has_bias_;
  Elements a_, b_, bias_;
};

// Into y.
void Multiply(const Product& product, const Elements& y, bool accumulate,
              Lane& lane) {
  lane.pool->ParallelFor(y.dim(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      for (int64_t n = 0; n < y.dim(1); ++n) {
        const double value = product.At(m, n);
        y.Set(accumulate ? value + y.Get(m, n) : value, m, n);
      }
    }
  });
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareMatmul(
    const KernelContext& context) {
  const bool accumulate = context.attributes->Int("accumulate") != 0;
  const Elements y(context.results[0]);
  return MakeKernel([=, product = Product(context)](Lane& lane) {
    Multiply(product, y, accumulate, lane);
  });
}

// function(y, x) but for swiglu; x is 0 where the function takes none.
using BinaryFunction = double(double y, double x);

BinaryFunction* FunctionOf(const Attributes& attributes) {
  const std::string name = attributes.String("function");
  const bool tanh = attributes.Int("tanh") != 0;
  if (name == "gelu" && tanh)
    return [](double y, double) { return scalar::GeluTanh(y); };
  if (name == "gelu")
    return [](double y, double) { return scalar::GeluErf(y); };
  if (name == "gelu_gradient" && tanh)
    return [](double y, double x) { return y * scalar::GeluTanhSlope(x); };
  if (name == "gelu_gradient")
    return [](double y, double x) { return y * scalar::GeluErfSlope(x); };
  if (name == "silu") return [](double y, double) { return scalar::Silu(y); };
  if (name == "silu_gradient")
    return [](double y, double x) { return y * scalar::SiluSlope(x); };
  if (name == "relu") return [](double y, double) { return scalar::Relu(y); };
  if (name == "relu_gradient")
    return [](double y, double x) { return x > 0 ? y : 0; };
  SG_CHECK(name == "add") << name;
  return [](double y, double x) { return y + x; };
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareMatmulPointwise(
    const KernelContext& context) {
  const bool keep = context.results.size() == 2;
  const bool swiglu = context.attributes->String("function") == "swiglu";
  BinaryFunction* const function =
      swiglu ? nullptr : FunctionOf(*context.attributes);
  const size_t product_operands = context.attributes->Int("bias") != 0 ? 3 : 2;
  const bool takes_x = context.operands.size() > product_operands;
  const Elements x(context.operands.back());
  const Elements y(context.results.front());  // when kept
  const Elements z(context.results.back());
  return MakeKernel([=, product = Product(context)](Lane&) {
    const auto rounded = [&](int64_t m, int64_t n) {
      const double value = RoundTo(z.dtype(), product.At(m, n));
      if (keep) y.Set(value, m, n);
      return value;
    };
    for (int64_t m = 0; m < z.dim(0); ++m) {
      for (int64_t n = 0; n < z.dim(1); ++n) {
        const double value = rounded(m, n);
        if (swiglu) {
          z.Set(RoundTo(z.dtype(), scalar::Silu(value)) *
                    rounded(m, n + z.dim(1)),
                m, n);
        } else {
          z.Set(function(value, takes_x ? x.Get(m, n) : 0), m, n);
        }
      }
    }
  });
}

void SumColumns(const Elements& x, const Elements& y, bool accumulate) {
  for (int64_t c = 0; c < x.dim(1); ++c) {
    double sum = 0;
    for (int64_t n = 0; n < x.dim(0); ++n) sum += x.Get(n, c);
    y.Set(sum + (accumulate ? y.Get(c) : 0), c);
  }
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareColumnSum(
    const KernelContext& context) {
  const bool accumulate = context.attributes->Int("accumulate") != 0;
  const Elements x(context.operands[0]);
  const Elements y(context.results[0]);
  return MakeKernel([=](Lane&) { SumColumns(x, y, accumulate); });
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareMatmulColumnSum(
    const KernelContext& context) {
  const int64_t accumulate = context.attributes->Int("accumulate");
  const Elements x(context.operands[SummedOperand(*context.attributes)]);
  const Elements y(context.results[0]);
  const Elements s(context.results[1]);
  return MakeKernel([=, product = Product(context)](Lane& lane) {
    Multiply(product, y, (accumulate & 1) != 0, lane);
    SumColumns(x, s, (accumulate & 2) != 0);
  });
}

constexpr KernelDef kKernels[] = {
    {.op = "matmul", .prepare = PrepareMatmul},
    {.op = "matmul_pointwise", .prepare = PrepareMatmulPointwise},
    {.op = "matmul_column_sum", .prepare = PrepareMatmulColumnSum},
    {.op = "column_sum", .prepare = PrepareColumnSum},
};

}  // namespace

absl::Span<const KernelDef> MatmulReferenceKernels() { return kKernels; }

}  // namespace shardgraph
