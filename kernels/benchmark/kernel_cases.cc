#include "kernels/benchmark/kernel_cases.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "kernels/op_table.h"

namespace shardgraph {

void TensorMaker::Fill(const TensorType& type, void* data) {
  const Tensor tensor{data, type};
  const int64_t n = type.span_bytes() / SizeOf(type.dtype);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t draw = (i * 2654435761u >> 7) % 1000;
    const float value = static_cast<float>(draw) / 1000 + 0.001f;
    switch (type.dtype) {
      case DType::kF32:
        tensor.as<float>()[i] = value;
        break;
      case DType::kBF16:
        tensor.as<BFloat16>()[i] = BFloat16(value);
        break;
      case DType::kF64:
        tensor.as<double>()[i] = value;
        break;
      case DType::kI32:
        tensor.as<int32_t>()[i] = n == 1 ? 0 : static_cast<int32_t>(draw);
        break;
      default:
        tensor.as<int64_t>()[i] = 1;
    }
  }
}

Tensor HostMemory::Make(const TensorType& type) {
  memory_.emplace_back(type.span_bytes());
  Fill(type, memory_.back().data());
  return Tensor{memory_.back().data(), type};
}

BoundKernelCase::BoundKernelCase(const KernelCase& c,
                                 const KernelTable& kernels,
                                 TensorMaker& memory) {
  const OpDef* const op = FindOp(c.op);
  SG_CHECK(op != nullptr) << c.op;
  std::vector<TensorType> types;
  SG_CHECK_EQ(InferResults(*op, c.attributes, c.operands, &types),
              absl::OkStatus());
  for (size_t r = 0; r < c.result_strides.size(); ++r) {
    if (!c.result_strides[r].empty()) types[r].strides = c.result_strides[r];
  }
  std::vector<Tensor> operands, results;
  for (const TensorType& type : c.operands)
    operands.push_back(memory.Make(type));
  for (size_t r = 0; r < types.size(); ++r) {
    const int tied = TiedOperand(*op, c.attributes, operands.size(),
                                 types.size(), static_cast<int>(r));
    results.push_back(tied >= 0 ? Tensor{operands[tied].data, types[r]}
                                : memory.Make(types[r]));
  }
  const auto kernel = kernels.Find(op->name, c.attributes, c.operands, types);
  SG_CHECK(kernel.ok()) << kernel.status().ToString();
  const int64_t workspace =
      (*kernel)->workspace == nullptr
          ? 0
          : (*kernel)->workspace(c.attributes, c.operands, types);
  KernelContext context;
  context.op = op;
  context.attributes = &c.attributes;
  context.operands = operands;
  context.results = results;
  context.workspace = memory.Make(TensorType(DType::kF64, {workspace / 8 + 1}));
  auto prepared = (*kernel)->prepare(context);
  SG_CHECK(prepared.ok()) << prepared.status().ToString();
  kernel_ = *std::move(prepared);
  const OpCost cost = CostOf(*op, c.attributes, c.operands, types);
  bytes_ = c.bytes > 0 ? c.bytes : static_cast<double>(cost.bytes);
  flops_ = cost.matmul_flops;
}

namespace {

Attributes Bias() { return Attributes().SetInt("bias", 1); }

}  // namespace

std::vector<KernelCase> KernelCases(int64_t tokens) {
  constexpr int64_t kLength = 1024, kWidth = 768, kHidden = 3072;
  const auto bf16 = [](Dims shape) { return TensorType(DType::kBF16, shape); };
  const auto f32 = [](Dims shape) { return TensorType(DType::kF32, shape); };
  const TensorType x = bf16({tokens, kWidth});
  const TensorType hidden = bf16({tokens, kHidden});
  const TensorType wide = bf16({tokens, 14336});
  const TensorType up = bf16({kWidth, kHidden}), down = bf16({kHidden, kWidth});
  const auto transposed = Attributes().SetInt("transpose_b", 1);
  const auto over_rows =
      Attributes().SetInt("transpose_a", 1).SetString("dtype", "F32");
  const TensorType statistics = f32({tokens});
  const TensorType f64 = TensorType(DType::kF64, {});
  const TensorType i32 = TensorType(DType::kI32, {});
  const TensorType i64 = TensorType(DType::kI64, {});
  const auto tanh = Attributes().SetInt("tanh", 1);
  const auto erf = Attributes().SetInt("tanh", 0);
  const int64_t params = int64_t{1} << 25;
  Attributes shard;
  shard.SetInts("segments", {0, params, 0}).SetString("group", "world");
  const Attributes adamw = Attributes(shard)
                               .SetInt("has_compute", 1)
                               .SetDouble("beta1_0", 0.9)
                               .SetDouble("beta2_0", 0.95)
                               .SetDouble("epsilon_0", 1e-8)
                               .SetDouble("weight_decay_0", 0.1);
  const TensorType flat = f32({params});
  // q, k and v side by side in one row.
  const auto heads = [&](int64_t count, int64_t width, int64_t row) {
    return TensorType(DType::kBF16, {tokens / kLength, kLength, count, width},
                      {kLength * row, row, width, 1});
  };
  const auto causal = Attributes().SetInt("causal", 1);
  const TensorType q = heads(12, 64, 2304), out = heads(12, 64, 768);
  const TensorType lse = f32({tokens / kLength, 12, kLength});
  const TensorType lq = heads(32, 128, 6144), lk = heads(8, 128, 6144);
  const TensorType lout = heads(32, 128, 4096),
                   llse = f32({tokens / kLength, 32, kLength});
  return {
      {"pointwise/add", "add", {}, {x, x}},
      {"pointwise/gelu_tanh", "gelu", tanh, {hidden}},
      {"pointwise/gelu_tanh_gradient", "gelu_gradient", tanh, {hidden, hidden}},
      {"pointwise/gelu_erf", "gelu", erf, {hidden}},
      {"pointwise/swiglu", "swiglu", {}, {wide, wide}},
      {"pointwise/swiglu_gradient", "swiglu_gradient", {}, {wide, wide, wide}},
      {"pointwise/cast",
       "cast",
       Attributes().SetString("dtype", "F32"),
       {hidden}},
      {"norm/layer_norm",
       "layer_norm",
       Bias().SetDouble("epsilon", 1e-5),
       {x, bf16({kWidth}), bf16({kWidth})}},
      {"norm/layer_norm_gradient",
       "layer_norm_gradient",
       Bias().SetString("dtype", "F32"),
       {x, x, bf16({kWidth}), statistics, statistics}},
      {"norm/rms_norm",
       "rms_norm",
       Attributes().SetDouble("epsilon", 1e-5),
       {bf16({tokens, 4096}), bf16({4096})}},
      {"norm/rms_norm_gradient",
       "rms_norm_gradient",
       Attributes().SetString("dtype", "F32"),
       {bf16({tokens, 4096}), bf16({tokens, 4096}), bf16({4096}), statistics}},
      // Products, then the same with what a target may fuse to them.
      {"matmul/up", "matmul", Bias(), {x, up, bf16({kHidden})}},
      {"matmul/up_gelu",
       "matmul_pointwise",
       Bias().SetString("function", "gelu").SetInt("tanh", 1),
       {x, up, bf16({kHidden})}},
      {"matmul/down_gradient", "matmul", transposed, {x, down}},
      {"matmul/down_gelu_gradient",
       "matmul_pointwise",
       Attributes(transposed)
           .SetString("function", "gelu_gradient")
           .SetInt("tanh", 1)
           .SetInt("keep", 0),
       {x, down, hidden}},
      {"matmul/up_weight_gradient", "matmul", over_rows, {x, hidden}},
      {"matmul/up_weight_and_bias_gradient",
       "matmul_column_sum",
       Attributes(over_rows).SetString("sum", "b"),
       {x, hidden}},
      {"matmul/column_sum",
       "column_sum",
       Attributes().SetString("dtype", "F32"),
       {hidden}},
      {"optimizer/adamw",
       "adamw",
       adamw,
       {flat, flat, flat, flat, bf16({params}), f32({8}),
        TensorType(DType::kF64, {8}), TensorType(DType::kF64, {8}), f64, i32},
       {},
       30.0 * params},
      {"optimizer/sum_of_squares", "sum_of_squares", shard, {flat}},
      {"optimizer/accumulate",
       "accumulate",
       {},
       {flat, flat, i64},
       {},
       12.0 * params},
      {"random/dropout",
       "dropout",
       Attributes().SetDouble("rate", 0.1).SetInt("seed", 1).SetInt("key", 2),
       {bf16({1, tokens * kWidth}), TensorType(DType::kI64, {1}), i64}},
      {"embedding/embedding",
       "embedding",
       {},
       {TensorType(DType::kI32, {tokens}), bf16({50304, kWidth})},
       {},
       4.0 * tokens * kWidth},
      {"embedding/embedding_gradient",
       "embedding_gradient",
       Attributes().SetInt("rows", 50304).SetString("dtype", "F32"),
       {TensorType(DType::kI32, {tokens}), x},
       {},
       4.0 * 50304 * kWidth + 2.0 * tokens * kWidth},
      {"embedding/rotary",
       "rotary",
       Attributes().SetDouble("theta", 5e5),
       {lout, TensorType(DType::kI32, {tokens})}},
      {"attention/gpt2", "attention", causal, {q, q, q}},
      {"attention/gpt2_gradient",
       "attention_gradient",
       causal,
       {out, q, q, q, out, lse},
       {q.strides, q.strides, q.strides}},
      {"attention/llama3", "attention", causal, {lq, lk, lk}},
      {"attention/llama3_gradient",
       "attention_gradient",
       causal,
       {lout, lq, lk, lk, lout, llse},
       {lq.strides, lk.strides, lk.strides}},
  };
}

}  // namespace shardgraph
