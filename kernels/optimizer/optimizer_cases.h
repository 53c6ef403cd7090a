// Cases of optimizer ops, for their tests.
#ifndef KERNELS_OPTIMIZER_OPTIMIZER_CASES_H_
#define KERNELS_OPTIMIZER_OPTIMIZER_CASES_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "kernels/testing/conformance.h"

namespace shardgraph {

inline const OpDef* Op(absl::string_view name) {
  for (const OpDef* op : OptimizerOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

// The ops insist on these dtypes, so that the truth does not widen them.
inline OperandCase Fixed(TensorType type, double low, double high) {
  OperandCase operand(type, low, high);
  operand.fixed_dtype = true;
  return operand;
}
inline OperandCase Fixed(TensorType type, std::vector<double> values) {
  OperandCase operand(type, std::move(values));
  operand.fixed_dtype = true;
  return operand;
}
inline OperandCase Shard(int64_t n, double low = -1, double high = 1) {
  return Fixed(TensorType(DType::kF32, {n}), low, high);
}
inline OperandCase Scalar(DType dtype, double value) {
  return Fixed(TensorType(dtype, {}), std::vector<double>{value});
}
inline OperandCase PerGroup(DType dtype, double low, double high) {
  return Fixed(TensorType(dtype, {8}), low, high);
}

// A flat parameter of `ranks` shards of n elements and its segments, with
// padding in front, between and behind.
struct Flat {
  int64_t n;
  int ranks;
  std::vector<int64_t> segments;
};

inline std::vector<Flat> Flats() {
  return {
      {0, 1, {}},
      {7, 1, {0, 7, 0}},
      {7, 1, {}},
      {100, 3, {1, 3, 0, 3, 90, 1, 95, 205, 0, 210, 299, 2}},
      {33, 4, {0, 66, 3}},  // the last two shards are padding
      {5000, 2, {10, 4100, 0, 4100, 4101, 1, 4500, 9000, 0, 9999, 10000, 7}},
      {17001, 1, {0, 16385, 0, 16385, 17000, 1}},
  };
}

inline void SetGroups(OpCase* op_case) {
  for (int g = 0; g < 8; ++g) {
    const std::string suffix = "_" + std::to_string(g);
    op_case->attributes.SetDouble("beta1" + suffix, 0.9 - 0.01 * g)
        .SetDouble("beta2" + suffix, 0.95 + 0.005 * g)
        .SetDouble("epsilon" + suffix, 1e-8 + 1e-4 * g)
        .SetDouble("momentum" + suffix, 0.8 + 0.01 * g)
        .SetDouble("weight_decay" + suffix, g % 2 == 0 ? 0.1 : 0.0);
  }
}

// The case with what every optimizer takes last, on this rank's shard.
inline OpCase Scaled(OpCase op_case, const Flat& flat, int rank,
                     bool has_compute, double found_inf) {
  op_case.operands.push_back(Scalar(DType::kF64, 0.37));
  op_case.operands.push_back(Scalar(DType::kI32, found_inf));
  op_case.rank = rank;
  op_case.group_size = flat.ranks;
  op_case.inner_rounding = has_compute;
  return op_case;
}

inline OpCase AdamWCase(const Flat& flat, int rank, DType compute,
                        bool has_compute, double found_inf = 0) {
  OpCase op_case;
  op_case.op = Op("adamw");
  op_case.attributes.SetInts("segments", flat.segments)
      .SetString("group", "shard")
      .SetInt("has_compute", has_compute);
  SetGroups(&op_case);
  op_case.operands = {Shard(flat.n), Shard(flat.n, -3, 3),
                      Shard(flat.n, -0.1, 0.1), Shard(flat.n, 0, 0.1)};
  if (has_compute)
    op_case.operands.push_back(Fixed(TensorType(compute, {flat.n}), -1, 1));
  op_case.operands.push_back(PerGroup(DType::kF32, 1e-4, 1e-2));
  op_case.operands.push_back(PerGroup(DType::kF64, 0.1, 0.9));
  op_case.operands.push_back(PerGroup(DType::kF64, 0.1, 0.9));
  return Scaled(std::move(op_case), flat, rank, has_compute, found_inf);
}

inline OpCase LionCase(const Flat& flat, int rank, bool has_compute,
                       double found_inf = 0) {
  OpCase op_case;
  op_case.op = Op("lion");
  op_case.attributes.SetInts("segments", flat.segments)
      .SetString("group", "shard")
      .SetInt("has_compute", has_compute);
  SetGroups(&op_case);
  op_case.operands = {Shard(flat.n), Shard(flat.n, -3, 3), Shard(flat.n)};
  if (has_compute)
    op_case.operands.push_back(
        Fixed(TensorType(DType::kBF16, {flat.n}), -1, 1));
  op_case.operands.push_back(PerGroup(DType::kF32, 1e-3, 1e-1));
  return Scaled(std::move(op_case), flat, rank, has_compute, found_inf);
}

inline OpCase SgdCase(const Flat& flat, int rank, bool has_momentum,
                      bool has_compute, double found_inf = 0) {
  OpCase op_case;
  op_case.op = Op("sgd");
  op_case.attributes.SetInts("segments", flat.segments)
      .SetString("group", "shard")
      .SetInt("has_momentum", has_momentum)
      .SetInt("has_compute", has_compute);
  SetGroups(&op_case);
  op_case.operands = {Shard(flat.n), Shard(flat.n, -3, 3)};
  if (has_momentum) op_case.operands.push_back(Shard(flat.n));
  if (has_compute) {
    op_case.operands.push_back(
        Fixed(TensorType(DType::kBF16, {flat.n}), -1, 1));
  }
  op_case.operands.push_back(PerGroup(DType::kF32, 1e-3, 1e-1));
  return Scaled(std::move(op_case), flat, rank, has_compute, found_inf);
}

// The same update with moments in BF16. Values and constants are such that FP32
// computes the moments without rounding, so that every backend rounds the same
// numbers by chance.
inline OpCase Rounding(OpCase op_case, int moments, uint64_t seed = 5) {
  const int64_t n = op_case.operands[0].type.dim(0);
  const auto multiples = [n](double of, int low, int high, uint64_t seed) {
    std::vector<double> values = UniformValues(n, low, high, seed);
    for (double& value : values) value = std::floor(value) * of;
    return values;
  };
  op_case.operands[1].values = multiples(0x1p-8, -256, 256, 1);
  for (int i = 0; i < moments; ++i) {
    op_case.operands[2 + i] =
        Fixed(TensorType(DType::kBF16, {n}), multiples(0x1p-7, 0, 127, 2 + i));
  }
  for (OperandCase& operand : op_case.operands) {
    if (operand.type.dtype == DType::kF64 && operand.type.rank() == 0)
      operand.values = {0.25};  // gradient_scale
  }
  for (int g = 0; g < 8; ++g) {
    const std::string suffix = "_" + std::to_string(g);
    op_case.attributes.SetDouble("beta1" + suffix, 0.5)
        .SetDouble("beta2" + suffix, 0.75)
        .SetDouble("momentum" + suffix, 0.75);
    if (op_case.op->name == "sgd")
      op_case.attributes.SetDouble("weight_decay" + suffix, 0);
  }
  op_case.attributes.SetInt("seed", seed).SetInt("key", 77);
  op_case.operands.push_back(Scalar(DType::kI64, 12));
  return op_case;
}

inline OpCase SumOfSquaresCase(const Flat& flat, int rank) {
  OpCase op_case;
  op_case.op = Op("sum_of_squares");
  op_case.attributes.SetInts("segments", flat.segments)
      .SetString("group", "shard");
  op_case.operands = {Shard(flat.n, -2, 2)};
  op_case.rank = rank;
  op_case.group_size = flat.ranks;
  return op_case;
}

inline OpCase AccumulateCase(DType dtype, Dims shape, double micro) {
  OpCase op_case;
  op_case.op = Op("accumulate");
  op_case.operands = {Fixed(TensorType(dtype, shape), -1, 1),
                      Fixed(TensorType(dtype, shape), -1, 1),
                      Scalar(DType::kI64, micro)};
  return op_case;
}

inline OpCase SumPiecesCase(DType dtype, int64_t n, int64_t size) {
  OpCase op_case;
  op_case.op = Op("sum_pieces");
  op_case.attributes.SetInt("size", size);
  op_case.operands = {Fixed(TensorType(dtype, {n * size}), -1, 1)};
  return op_case;
}

inline OpCase FinishCase(std::vector<double> sums, double tokens,
                         double nominal, double loss_scale, double max_norm,
                         NonFinite policy = NonFinite::kSkip, double stop = 0) {
  OpCase op_case;
  op_case.op = Op("finish_gradients");
  op_case.attributes.SetDouble("max_norm", max_norm)
      .SetInt("non_finite", static_cast<int64_t>(policy));
  const int64_t count = sums.size();
  op_case.operands = {Fixed(TensorType(DType::kF64, {count}), sums),
                      Scalar(DType::kF64, tokens), Scalar(DType::kF64, nominal),
                      Scalar(DType::kF32, loss_scale),
                      Scalar(DType::kI32, stop)};
  return op_case;
}

inline OpCase LossScaleCase(double scale, double counter, double found_inf) {
  OpCase op_case;
  op_case.op = Op("update_loss_scale");
  op_case.attributes.SetDouble("growth", 2)
      .SetDouble("backoff", 0.5)
      .SetInt("interval", 3);
  op_case.operands = {Scalar(DType::kF32, scale), Scalar(DType::kI32, counter),
                      Scalar(DType::kI32, found_inf)};
  return op_case;
}

inline OpCase AdvanceCase(double found_inf) {
  OpCase op_case;
  op_case.op = Op("advance_state");
  op_case.attributes.SetDouble("beta1_0", 0.9)
      .SetDouble("beta2_0", 0.99)
      .SetDouble("beta1_3", 0.5);
  op_case.operands = {
      Fixed(TensorType(DType::kI64, {}), std::vector<double>{41}),
      Fixed(TensorType(DType::kF64, {8}), std::vector<double>(8, 0.5)),
      Fixed(TensorType(DType::kF64, {8}), std::vector<double>(8, 0.25)),
      Scalar(DType::kI32, found_inf)};
  return op_case;
}

}  // namespace shardgraph

#endif  // KERNELS_OPTIMIZER_OPTIMIZER_CASES_H_
