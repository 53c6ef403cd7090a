// The pointwise function that follows a product.
#ifndef KERNELS_MATMUL_FUNCTION_H_
#define KERNELS_MATMUL_FUNCTION_H_

#include <string>

#include "kernels/attributes.h"
#include "kernels/check.h"
#include "kernels/pointwise/pointwise_run.h"

namespace shardgraph {

// What the attributes function and tanh of matmul_pointwise say.
inline Pointwise PointwiseFunctionOf(const Attributes& attributes) {
  const std::string name = attributes.String("function");
  const bool tanh = attributes.Int("tanh") != 0;
  if (name == "gelu") return tanh ? Pointwise::kGeluTanh : Pointwise::kGeluErf;
  if (name == "gelu_gradient") {
    return tanh ? Pointwise::kGeluTanhGradient : Pointwise::kGeluErfGradient;
  }
  if (name == "silu") return Pointwise::kSilu;
  if (name == "silu_gradient") return Pointwise::kSiluGradient;
  if (name == "relu") return Pointwise::kRelu;
  if (name == "relu_gradient") return Pointwise::kReluGradient;
  if (name == "swiglu") return Pointwise::kSwiglu;
  SG_CHECK(name == "add") << name;
  return Pointwise::kAdd;
}

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_FUNCTION_H_
