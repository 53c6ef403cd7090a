// Kernels against PyTorch: the error of ours against FP64 truth is at most a
// small multiple of torch's own (tests/fixtures/README.md).
#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/attention/attention.h"
#include "kernels/embedding/embedding.h"
#include "kernels/loss/loss.h"
#include "kernels/norm/norm.h"
#include "kernels/op_table.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"
#include "tests/harness/torch_fixture.h"

namespace shardgraph {
namespace {

using Kernels = TestKernels;

const TorchFixture& Ops() {
  static const auto& fixture = *new TorchFixture("tests/fixtures/ops");
  return fixture;
}

// `ours` against result `name` of the fixture, computed in `dtype`.
void CheckResult(const std::string& name, DType dtype, const Values& ours) {
  const bool f32 = dtype == DType::kF32;
  const Values truth = Ops().Get(name);
  const Values torch = Ops().Get(name + (f32 ? "_f32" : "_bf16"));
  const double allowed =
      f32 ? 3 * Distance(torch, truth) + 1e-6 * Norm(truth)
          : 1.5 * Distance(torch, truth) + 1e-3 * Norm(truth);
  EXPECT_LE(Distance(ours, truth), allowed)
      << name << " " << std::string(DTypeName(dtype)) << ": norm "
      << Norm(truth) << ", torch's error " << Distance(torch, truth);
}

std::vector<Values> Launch(const Kernels& kernels, absl::string_view op,
                           Attributes attributes,
                           std::vector<OperandCase> operands) {
  OpCase op_case;
  op_case.op = FindOp(op);
  op_case.attributes = std::move(attributes);
  op_case.operands = std::move(operands);
  return Evaluate(op_case, kernels, false);
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

TEST(KernelFixtures, LayerNorm) {
  for (const Kernels& kernels :
       std::initializer_list<Kernels>{NormReferenceKernels(), NormCpuKernels(),
                                      OnCuda(NormCudaKernels())}) {
    for (const std::string name :
         {"layer_norm", "layer_norm_large_mean", "layer_norm_tiny"}) {
      for (const DType dtype : kDTypes) {
        const auto in = [&](const char* tensor) {
          return Ops().Operand(absl::StrCat(name, "/", tensor), dtype);
        };
        const Attributes attributes =
            Attributes()
                .SetDouble("epsilon", Ops().json()[name]["eps"])
                .SetInt("bias", 1);
        const auto forward = Launch(kernels, "layer_norm", attributes,
                                    {in("x"), in("weight"), in("bias")});
        const TensorType rows(DType::kF32, {in("x").type.dim(0)});
        const auto gradient = Launch(
            kernels, "layer_norm_gradient", attributes,
            {in("dy"), in("x"), in("weight"), OperandCase(rows, forward[1]),
             OperandCase(rows, forward[2])});
        CheckResult(name + "/y", dtype, forward[0]);
        CheckResult(name + "/dx", dtype, gradient[0]);
        CheckResult(name + "/dweight", dtype, gradient[1]);
        CheckResult(name + "/dbias", dtype, gradient[2]);
      }
    }
  }
}

TEST(KernelFixtures, RmsNorm) {
  for (const Kernels& kernels :
       std::initializer_list<Kernels>{NormReferenceKernels(), NormCpuKernels(),
                                      OnCuda(NormCudaKernels())}) {
    for (const std::string name : {"rms_norm", "rms_norm_tiny"}) {
      for (const DType dtype : kDTypes) {
        const auto in = [&](const char* tensor) {
          return Ops().Operand(absl::StrCat(name, "/", tensor), dtype);
        };
        const Attributes attributes =
            Attributes().SetDouble("epsilon", Ops().json()[name]["eps"]);
        const auto forward =
            Launch(kernels, "rms_norm", attributes, {in("x"), in("weight")});
        const TensorType rows(DType::kF32, {in("x").type.dim(0)});
        const auto gradient = Launch(
            kernels, "rms_norm_gradient", attributes,
            {in("dy"), in("x"), in("weight"), OperandCase(rows, forward[1])});
        CheckResult(name + "/y", dtype, forward[0]);
        CheckResult(name + "/dx", dtype, gradient[0]);
        CheckResult(name + "/dweight", dtype, gradient[1]);
      }
    }
  }
}

TEST(KernelFixtures, GeluAndSwiglu) {
  for (const Kernels& kernels : std::initializer_list<Kernels>{
           PointwiseReferenceKernels(), PointwiseCpuKernels(),
           OnCuda(PointwiseCudaKernels())}) {
    for (const DType dtype : kDTypes) {
      const auto in = [&](const char* name) {
        return Ops().Operand(name, dtype);
      };
      const Attributes tanh = Attributes().SetInt("tanh", 1);
      CheckResult("gelu_tanh/y", dtype,
                  Launch(kernels, "gelu", tanh, {in("gelu_tanh/x")})[0]);
      CheckResult("gelu_tanh/dx", dtype,
                  Launch(kernels, "gelu_gradient", tanh,
                         {in("gelu_tanh/dy"), in("gelu_tanh/x")})[0]);
      CheckResult("swiglu/y", dtype,
                  Launch(kernels, "swiglu", {},
                         {in("swiglu/gate"), in("swiglu/up")})[0]);
      const auto gradient =
          Launch(kernels, "swiglu_gradient", {},
                 {in("swiglu/dy"), in("swiglu/gate"), in("swiglu/up")});
      CheckResult("swiglu/dgate", dtype, gradient[0]);
      CheckResult("swiglu/dup", dtype, gradient[1]);
    }
  }
}

Attributes RotaryAttributes(const nlohmann::json& json) {
  Attributes attributes = Attributes().SetDouble("theta", json["rope_theta"]);
  const nlohmann::json& scaling = json["rope_scaling"];
  if (!scaling.is_null()) {
    attributes.SetString("rope_type", "llama3")
        .SetInt("original_max_position",
                scaling["original_max_position_embeddings"]);
    for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"})
      attributes.SetDouble(name, scaling[name]);
  }
  return attributes;
}

TEST(KernelFixtures, Rotary) {
  for (const std::string name :
       {"rotary", "rotary_llama31", "rotary_llama32"}) {
    SCOPED_TRACE(name);
    const Attributes attributes = RotaryAttributes(Ops().json()[name]);
    const Dims shape = Ops().Shape(name + "/x");
    const Values wanted = Ops().Get(name + "/inv_freq_f32");
    const std::vector<float> frequencies =
        RotaryFrequencies(attributes, shape[3]);
    ASSERT_EQ(frequencies.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_NEAR(frequencies[i], wanted[i], 0x1p-22 * wanted[i]) << i;

    Values positions;  // the same for every sequence
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (const double position : Ops().Get(name + "/positions"))
        positions.push_back(position);
    }
    const OperandCase rows(TensorType(DType::kI32, {shape[0] * shape[1]}),
                           positions);
    // The tables of the fixture come from FP64 angles; ours, like
    // transformers' own, from FP32 ones, which are off by up to half a unit in
    // the last place of the largest.
    const double largest =
        *std::max_element(positions.begin(), positions.end());
    const double angle_error = largest * 0x1p-23;
    for (const Kernels& kernels : std::initializer_list<Kernels>{
             EmbeddingReferenceKernels(), EmbeddingCpuKernels(),
             OnCuda(EmbeddingCudaKernels())}) {
      for (const bool inverse : {false, true}) {
        const std::string in = inverse ? "/dy" : "/x";
        const std::string out = inverse ? "/dx" : "/y";
        const auto run = [&](DType dtype) {
          return Launch(kernels, "rotary",
                        Attributes(attributes).SetInt("inverse", inverse),
                        {Ops().Operand(name + in, dtype), rows})[0];
        };
        const Values truth = Ops().Get(name + out);
        EXPECT_LE(Distance(run(DType::kF32), truth),
                  (angle_error + 1e-6) * Norm(truth));
        CheckResult(name + out, DType::kBF16, run(DType::kBF16));
      }
    }
  }
}

TEST(KernelFixtures, Attention) {
  for (const Kernels& kernels : std::initializer_list<Kernels>{
           AttentionReferenceKernels(), AttentionCpuKernels(),
           OnCuda(AttentionCudaKernels())}) {
    for (const std::string name : {"attention", "attention_grouped",
                                   "attention_offset", "attention_long"}) {
      const nlohmann::json& json = Ops().json()[name];
      const int64_t offset = json["query_offset"];
      for (const DType dtype : kDTypes) {
        const auto in = [&](const char* tensor) {
          return Ops().Operand(absl::StrCat(name, "/", tensor), dtype);
        };
        Attributes attributes =
            Attributes().SetInt("causal", 1).SetDouble("scale", json["scale"]);
        std::vector<OperandCase> operands = {in("q"), in("k"), in("v")};
        if (offset != 0) {
          attributes.SetInt("has_offset", 1);
          operands.push_back(OperandCase(TensorType(DType::kI64, {}),
                                         Values{static_cast<double>(offset)}));
        }
        const auto forward = Launch(kernels, "attention", attributes, operands);
        CheckResult(name + "/y", dtype, forward[0]);
        CheckResult(name + "/lse", dtype, forward[1]);
        if (offset != 0) continue;  // decoding has no gradient
        const OperandCase y(in("q").type, forward[0]);
        const OperandCase lse(
            TensorType(DType::kF32, Ops().Shape(name + "/lse")), forward[1]);
        const auto gradient =
            Launch(kernels, "attention_gradient", attributes,
                   {in("dy"), in("q"), in("k"), in("v"), y, lse});
        CheckResult(name + "/dq", dtype, gradient[0]);
        CheckResult(name + "/dk", dtype, gradient[1]);
        CheckResult(name + "/dv", dtype, gradient[2]);
      }
    }
  }
}

// The head's product with the identity gives the logits of the fixture.
TEST(KernelFixtures, CrossEntropy) {
  for (const Kernels& kernels :
       std::initializer_list<Kernels>{LossReferenceKernels(), LossCpuKernels(),
                                      OnCuda(LossCudaKernels())}) {
    for (const std::string name :
         {"cross_entropy", "cross_entropy_large", "cross_entropy_smoothed",
          "cross_entropy_z_loss"}) {
      const OperandCase logits = Ops().Operand(name + "/logits", DType::kF32);
      const int64_t size = logits.type.dim(1);
      Values identity(size * size);
      for (int64_t v = 0; v < size; ++v) identity[v * size + v] = 1;
      const double weight = Ops().Get(name + "/weight")[0];
      const auto results = Launch(
          kernels, "cross_entropy_head_gradient",
          Attributes()
              .SetInt("chunk_rows", 4)
              .SetDouble("label_smoothing",
                         Ops().json()[name]["label_smoothing"])
              .SetDouble("z_loss", Ops().json()[name]["z_loss"]),
          {logits, OperandCase(TensorType(DType::kF32, {size, size}), identity),
           Ops().Operand(name + "/targets", DType::kI32),
           OperandCase(TensorType(DType::kF32, {}), Values{1}),
           OperandCase(TensorType(DType::kF64, {}), Values{weight})});
      EXPECT_EQ(results[0][1], weight);
      CheckResult(name + "/loss", DType::kF32, Values{results[0][0] / weight});
      CheckResult(name + "/dlogits", DType::kF32, results[1]);
    }
  }
}

}  // namespace
}  // namespace shardgraph
