#include "kernels/testing/conformance.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/reference/access.h"
#include "kernels/testing/guarded_tensor.h"
#include "kernels/testing/uneven_pool.h"

namespace shardgraph {
namespace {

// Factors of the tolerance, by the dtype of a result. `store` is the rounding
// of one element (half a unit in the last place) with room for the few units
// that exp and its like may be off in FP32. `accumulate` bounds FP32 sums of a
// few thousand terms of changing sign.
struct Tolerance {
  double store;
  double accumulate;
};

Tolerance ToleranceOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {0x1.01p-8, 0x1p-18};
    case DType::kF16:
      return {0x1.01p-11, 0x1p-18};
    case DType::kF32:
      return {0x1p-21, 0x1p-18};
    case DType::kF64:
      // Statistics of FP32 computations are stored as F64.
      return {0x1p-21, 0x1p-18};
    default:
      return {0, 0};
  }
}

struct Run {
  std::vector<TensorType> types;
  std::vector<ResultValues> values;
  std::vector<std::vector<uint8_t>> bytes;
};

enum class Alignment { kAligned, kOffByOneElement };

TensorType WithDType(const TensorType& type, DType dtype) {
  return TensorType(dtype, type.shape, type.strides);
}

void Fill(const OperandCase& operand, uint64_t seed, const Tensor& tensor) {
  const Elements out(tensor);
  const int64_t n = out.size();
  const bool floating = IsFloating(operand.type.dtype);
  std::vector<double> values = operand.values;
  if (values.empty()) {
    values =
        UniformValues(n, operand.low, operand.high + (floating ? 0 : 1), seed);
  }
  SG_CHECK_EQ(static_cast<int64_t>(values.size()), n)
      << "values given for " << operand.type.ToString();
  for (int64_t i = 0; i < n; ++i) {
    double value = values[i];
    if (!floating && operand.values.empty())
      value = std::min(std::floor(value), operand.high);
    // Also what a widened tensor holds: the truth starts from the same values.
    out.SetFlat(RoundTo(operand.type.dtype, value), i);
  }
}

bool MayBeDeclined(const OpCase& op_case) {
  for (const OperandCase& operand : op_case.operands) {
    if (operand.type.dtype == DType::kF16 || operand.type.dtype == DType::kF64)
      return true;
  }
  const std::string dtype = op_case.attributes.String("dtype");
  return dtype == "F16" || dtype == "F64";
}

// Nothing when the kernel declined the case (allowed or, with a failure, not).
std::optional<Run> RunCase(const OpCase& op_case,
                           absl::Span<const KernelDef> kernels, bool widen,
                           Alignment alignment, ThreadPool* pool,
                           KernelDevice* device = nullptr) {
  const OpDef& op = *op_case.op;
  Attributes attributes = op_case.attributes;
  if (widen && attributes.Has("dtype")) attributes.SetString("dtype", "F64");
  std::vector<TensorType> operand_types;
  for (const OperandCase& operand : op_case.operands) {
    operand_types.push_back(widen && IsFloating(operand.type.dtype) &&
                                    !operand.fixed_dtype
                                ? WithDType(operand.type, DType::kF64)
                                : operand.type);
  }
  Run run;
  absl::Status status = InferResults(op, attributes, operand_types, &run.types);
  if (!status.ok()) {
    ADD_FAILURE() << status;
    return std::nullopt;
  }
  const int num_operands = operand_types.size();
  const int num_results = run.types.size();
  std::vector<int> tied(num_results);
  for (int r = 0; r < num_results; ++r) {
    tied[r] = TiedOperand(op, attributes, num_operands, num_results, r);
    if (tied[r] < 0 && r < static_cast<int>(op_case.result_strides.size()) &&
        !op_case.result_strides[r].empty()) {
      run.types[r].strides = op_case.result_strides[r];
    }
  }
  const KernelTable table({kernels});
  const auto found = table.Find(op.name, attributes, operand_types, run.types);
  if (!found.ok()) {
    EXPECT_TRUE(MayBeDeclined(op_case) && absl::IsUnimplemented(found.status()))
        << found.status();
    return std::nullopt;
  }
  const KernelDef& kernel = **found;

  std::deque<GuardedTensor> memory;
  const auto make = [&](const TensorType& type, uint8_t gap) {
    const int64_t misalignment =
        alignment == Alignment::kOffByOneElement ? SizeOf(type.dtype) : 0;
    memory.emplace_back(type, gap, misalignment);
    return memory.back().tensor();
  };
  std::vector<Tensor> operands;
  for (int i = 0; i < num_operands; ++i) {
    const bool written = std::count(tied.begin(), tied.end(), i) > 0;
    operands.push_back(make(operand_types[i], written
                                                  ? GuardedTensor::kSentinel
                                                  : GuardedTensor::kPoison));
    Fill(op_case.operands[i], 1000 * i + num_operands, operands.back());
    memory.back().Snapshot();
  }
  std::vector<Tensor> results;
  for (int r = 0; r < num_results; ++r) {
    if (tied[r] >= 0) {
      results.push_back(Tensor{operands[tied[r]].data, run.types[r]});
    } else {
      results.push_back(make(run.types[r], GuardedTensor::kSentinel));
    }
  }
  // A kernel may find more than it has asked for: scratch for a library.
  const bool spare = device != nullptr && alignment == Alignment::kAligned;
  const int64_t workspace_bytes =
      (kernel.workspace == nullptr
           ? 0
           : kernel.workspace(attributes, operand_types, run.types)) +
      (spare ? 8192 : 0);
  memory.emplace_back(TensorType(DType::kU8, {workspace_bytes}),
                      GuardedTensor::kSentinel, 0);

  // On a device, kernels are given copies.
  std::vector<char*> copies;
  if (device != nullptr) {
    for (GuardedTensor& guarded : memory) {
      const absl::Span<uint8_t> bytes = guarded.bytes();
      const int64_t begin = guarded.data_offset();
      const int64_t end = begin + guarded.tensor().type.span_bytes();
      char* const copy = device->Upload(bytes);
      const bool is_operand = copies.size() < static_cast<size_t>(num_operands);
      device->MarkUnwritten(copy, is_operand ? begin : bytes.size());
      device->MarkUnwritten(copy + end, bytes.size() - end);
      copies.push_back(copy);
    }
  }
  const auto placed = [&](Tensor tensor) {
    for (size_t i = 0; i < copies.size(); ++i) {
      if (memory[i].tensor().data != tensor.data) continue;
      tensor.data = copies[i] + memory[i].data_offset();
      break;
    }
    return tensor;
  };
  std::vector<Tensor> placed_operands, placed_results;
  for (const Tensor& t : operands) placed_operands.push_back(placed(t));
  for (const Tensor& t : results) placed_results.push_back(placed(t));

  KernelContext context;
  context.op = &op;
  context.attributes = &attributes;
  context.operands = placed_operands;
  context.results = placed_results;
  context.workspace = placed(memory.back().tensor());
  context.rank = op_case.rank;
  context.group_size = op_case.group_size;
  auto prepared = kernel.prepare(context);
  if (!prepared.ok()) {
    ADD_FAILURE() << prepared.status();
    return std::nullopt;
  }
  if (device != nullptr) {
    status = device->Run(**prepared);
    for (size_t i = 0; i < copies.size(); ++i)
      device->Download(copies[i], memory[i].bytes());
    prepared->reset();  // gives back what it holds of the device
    device->Clear();
  } else {
    Lane lane;
    lane.pool = pool;
    status = (*prepared)->Launch(lane);
  }
  EXPECT_TRUE(status.ok()) << status;

  const auto written = [&](const Tensor& tensor) {
    return std::any_of(results.begin(), results.end(),
                       [&](const Tensor& r) { return r.data == tensor.data; });
  };
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool is_workspace = i + 1 == memory.size();
    EXPECT_TRUE(memory[i].GapsIntact())
        << (is_workspace ? "workspace" : memory[i].tensor().type.ToString())
        << " (tensor " << i << ", operands first): bytes around or between "
        << "its elements were overwritten";
    if (static_cast<int>(i) < num_operands && !written(memory[i].tensor())) {
      EXPECT_TRUE(memory[i].Unchanged()) << "operand " << i << " was written";
    }
  }
  for (int r = 0; r < num_results; ++r) {
    const Elements elements(results[r]);
    ResultValues values(elements.size());
    for (int64_t i = 0; i < elements.size(); ++i)
      values[i] = elements.GetFlat(i);
    run.values.push_back(std::move(values));
    for (const GuardedTensor& guarded : memory) {
      if (guarded.tensor().data == results[r].data &&
          run.bytes.size() == static_cast<size_t>(r)) {
        run.bytes.push_back(guarded.ElementBytes());
      }
    }
  }
  return run;
}

// Largest distance; 0 where both are NaN or the same infinity.
double ErrorOf(double value, double truth) {
  if (std::isnan(value) && std::isnan(truth)) return 0;
  if (value == truth) return 0;
  return std::abs(value - truth);
}

void CheckResult(const OpCase& op_case, const TensorType& type,
                 const ResultValues& values, const ResultValues& truth,
                 const ResultValues& reference) {
  const Tolerance tolerance = ToleranceOf(type.dtype);
  double largest = IsFloating(type.dtype) ? op_case.magnitude : 0;
  double reference_error = 0;
  ASSERT_EQ(values.size(), truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    if (std::isfinite(truth[i]))
      largest = std::max(largest, std::abs(truth[i]));
    if (op_case.inner_rounding)
      reference_error =
          std::max(reference_error, ErrorOf(reference[i], truth[i]));
  }
  for (size_t i = 0; i < truth.size(); ++i) {
    const double allowed = tolerance.store * std::abs(truth[i]) +
                           tolerance.accumulate * largest + 2 * reference_error;
    const double error = ErrorOf(values[i], truth[i]);
    if (!(error <= allowed)) {  // NaN fails too
      ADD_FAILURE() << type.ToString() << " element " << i << " (row-major) is "
                    << values[i] << ", the truth is " << truth[i] << ": error "
                    << error << ", allowed " << allowed;
      return;
    }
  }
}

// Checks one case on each of the targets; `three` has three threads.
void CheckCase(const OpCase& op_case, absl::Span<const KernelDef> reference,
               absl::Span<const KernelDef> kernels,
               const std::vector<CpuTarget>& targets, ThreadPool* three) {
  SCOPED_TRACE(op_case.Name());
  UnevenPool uneven;
  std::optional<Run> truth, oracle;
  for (const CpuTarget target : targets) {
    SCOPED_TRACE(absl::StrCat("CPU target ", CpuTargetName(target)));
    const CpuTargetOverride only(target);
    const std::optional<Run> run =
        RunCase(op_case, kernels, false, Alignment::kAligned, &uneven);
    if (!run.has_value()) continue;
    const std::optional<Run> again =
        RunCase(op_case, kernels, false, Alignment::kOffByOneElement, three);
    if (!truth.has_value()) {
      truth = RunCase(op_case, reference, true, Alignment::kAligned, &uneven);
      oracle = op_case.inner_rounding ? RunCase(op_case, reference, false,
                                                Alignment::kAligned, &uneven)
                                      : truth;
    }
    if (!again.has_value() || !truth.has_value() || !oracle.has_value()) {
      ADD_FAILURE() << "not every run was possible";
      continue;
    }
    for (size_t r = 0; r < run->types.size(); ++r) {
      SCOPED_TRACE(absl::StrCat("result ", r));
      EXPECT_TRUE(run->bytes[r] == again->bytes[r])
          << "bits differ between one thread and three, or with alignment";
      CheckResult(op_case, run->types[r], run->values[r], truth->values[r],
                  oracle->values[r]);
    }
  }
}

}  // namespace

std::string OpCase::Name() const {
  std::string name = absl::StrCat(op->name, "(");
  for (const OperandCase& operand : operands) {
    absl::StrAppend(&name, &operand == operands.data() ? "" : ", ",
                    operand.type.ToString());
  }
  return absl::StrCat(name, ") ", attributes.ToString());
}

std::vector<double> UniformValues(int64_t count, double low, double high,
                                  uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> values(count);
  for (double& value : values)
    value = low +
            (high - low) * std::ldexp(static_cast<double>(random() >> 11), -53);
  return values;
}

std::vector<ResultValues> Evaluate(const OpCase& op_case,
                                   const TestKernels& kernels, bool widen) {
  SCOPED_TRACE(op_case.Name());
  UnevenPool pool;
  const std::optional<Run> run =
      RunCase(op_case, kernels.kernels, widen, Alignment::kAligned, &pool,
              kernels.device.get());
  if (!run.has_value()) {
    ADD_FAILURE() << "no kernel ran";
    return {};
  }
  return run->values;
}

void CheckKernels(absl::Span<const OpCase> cases,
                  absl::Span<const KernelDef> reference,
                  absl::Span<const KernelDef> kernels) {
  const std::unique_ptr<ThreadPool> three = MakeThreadPool(3);
  for (const OpCase& op_case : cases)
    CheckCase(op_case, reference, kernels, {BestCpuTarget()}, three.get());
}

void CheckDeviceKernels(absl::Span<const OpCase> cases,
                        absl::Span<const KernelDef> reference,
                        absl::Span<const KernelDef> kernels,
                        KernelDevice& device) {
  UnevenPool pool;
  for (const OpCase& op_case : cases) {
    SCOPED_TRACE(op_case.Name());
    const auto on_device = [&](Alignment alignment) {
      return RunCase(op_case, kernels, false, alignment, nullptr, &device);
    };
    const std::optional<Run> run = on_device(Alignment::kAligned);
    if (!run.has_value()) continue;
    const std::optional<Run> again = on_device(Alignment::kAligned);
    const std::optional<Run> shifted = on_device(Alignment::kOffByOneElement);
    const std::optional<Run> truth =
        RunCase(op_case, reference, true, Alignment::kAligned, &pool);
    const std::optional<Run> oracle =
        op_case.inner_rounding
            ? RunCase(op_case, reference, false, Alignment::kAligned, &pool)
            : truth;
    if (!again || !shifted || !truth || !oracle) {
      ADD_FAILURE() << "not every run was possible";
      continue;
    }
    for (size_t r = 0; r < run->types.size(); ++r) {
      SCOPED_TRACE(absl::StrCat("result ", r));
      EXPECT_TRUE(run->bytes[r] == again->bytes[r])
          << "bits differ from run to run";
      for (const Run* values : {&*run, &*shifted}) {
        CheckResult(op_case, run->types[r], values->values[r], truth->values[r],
                    oracle->values[r]);
      }
    }
  }
}

void CheckCpuKernels(absl::Span<const OpCase> cases,
                     absl::Span<const KernelDef> reference,
                     absl::Span<const KernelDef> kernels) {
  const std::unique_ptr<ThreadPool> three = MakeThreadPool(3);
  for (const OpCase& op_case : cases)
    CheckCase(op_case, reference, kernels, SupportedCpuTargets(), three.get());
}

std::set<std::string> CoveredOps(absl::Span<const OpCase> cases) {
  std::set<std::string> names;
  for (const OpCase& op_case : cases)
    names.insert(std::string(op_case.op->name));
  return names;
}

std::set<std::string> CoveredOps(absl::Span<const KernelDef> kernels) {
  std::set<std::string> names;
  for (const KernelDef& kernel : kernels) names.insert(std::string(kernel.op));
  return names;
}

std::set<std::string> NamesOf(absl::Span<const OpDef* const> ops) {
  std::set<std::string> names;
  for (const OpDef* op : ops) names.insert(std::string(op->name));
  return names;
}

}  // namespace shardgraph
