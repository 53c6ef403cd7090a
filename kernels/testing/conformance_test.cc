// The harness must see what it is there to see: each wrong kernel fails.
#include "kernels/testing/conformance.h"

#include <string>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "kernels/reference/access.h"

namespace shardgraph {
namespace {

// y[i, j] = 2 x[i, j], x and y strided.
absl::Status InferTwice(const Attributes&,
                        absl::Span<const TensorType> operands,
                        std::vector<TensorType>* results) {
  results->push_back(TensorType(operands[0].dtype, operands[0].shape));
  return absl::OkStatus();
}

const OpDef& Twice() {
  static const OpDef* const op = [] {
    auto* twice = new OpDef;
    twice->name = "twice";
    twice->infer = InferTwice;
    twice->strided_operands = 1;
    twice->strided_results = 1;
    twice->accumulates = 1;
    return twice;
  }();
  return *op;
}

using Body = void (*)(const Tensor& x, const Tensor& y, const Tensor& workspace,
                      int64_t begin, int64_t end);

template <Body body>
absl::StatusOr<std::unique_ptr<PreparedKernel>> Prepare(
    const KernelContext& context) {
  return MakeKernel([x = context.operands[0], y = context.results[0],
                     workspace = context.workspace](Lane& lane) {
    lane.pool->ParallelFor(x.type.shape[0], 3, [&](int64_t begin, int64_t end) {
      body(x, y, workspace, begin, end);
    });
  });
}

template <Body body>
KernelDef Kernel() {
  KernelDef kernel;
  kernel.op = "twice";
  kernel.workspace = [](const Attributes&, absl::Span<const TensorType>,
                        absl::Span<const TensorType>) -> int64_t { return 8; };
  kernel.prepare = Prepare<body>;
  return kernel;
}

void Right(const Tensor& x, const Tensor& y, const Tensor&, int64_t begin,
           int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j < x.type.shape[1]; ++j)
      Elements(y).Set(2 * Elements(x).Get(i, j), i, j);
  }
}

void WritesGap(const Tensor& x, const Tensor& y, const Tensor& w, int64_t begin,
               int64_t end) {
  Right(x, y, w, begin, end);
  Elements(y).Set(0, 0, y.type.shape[1]);
}

void ReadsGap(const Tensor& x, const Tensor& y, const Tensor& w, int64_t begin,
              int64_t end) {
  Right(x, y, w, begin, end);
  for (int64_t i = begin; i < end; ++i)
    Elements(y).Set(Elements(x).Get(i, x.type.shape[1]), i, 0);
}

void WritesOperand(const Tensor& x, const Tensor& y, const Tensor& w,
                   int64_t begin, int64_t end) {
  Right(x, y, w, begin, end);
  Elements(x).Set(0, 0, 0);
}

void ReadsWorkspace(const Tensor& x, const Tensor& y, const Tensor& w,
                    int64_t begin, int64_t end) {
  Right(x, y, w, begin, end);
  Elements(y).Set(*w.as<float>(), begin, 0);
}

void OverrunsWorkspace(const Tensor& x, const Tensor& y, const Tensor& w,
                       int64_t begin, int64_t end) {
  Right(x, y, w, begin, end);
  w.as<float>()[2] = 1;
}

void DependsOnTheRange(const Tensor& x, const Tensor& y, const Tensor& w,
                       int64_t begin, int64_t end) {
  Right(x, y, w, begin, end);
  Elements(y).Set(Elements(y).Get(begin, 0) * (1 + 0x1p-23), begin, 0);
}

void ForgetsAnElement(const Tensor& x, const Tensor& y, const Tensor& w,
                      int64_t begin, int64_t end) {
  if (begin == 0) ++begin;
  Right(x, y, w, begin, end);
}

void IsInaccurate(const Tensor& x, const Tensor& y, const Tensor& w,
                  int64_t begin, int64_t end) {
  Right(x, y, w, begin, end);
  for (int64_t i = begin; i < end; ++i)
    Elements(y).Set(Elements(y).Get(i, 1) * (1 + 0x1p-16), i, 1);
}

void AddsColumn(const Tensor& x, const Tensor& y, const Tensor&, int64_t begin,
                int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    Elements(y).Set(Elements(y).Get(i, 0) + Elements(x).Get(i, 0), i, 0);
}

std::vector<OpCase> Cases() {
  OpCase strided;
  strided.op = &Twice();
  strided.operands = {TensorType(DType::kF32, {10, 4}, {7, 1})};
  strided.result_strides = {{9, 1}};
  return {strided};
}

// All failures of a run, as text.
template <Body body>
std::string Failures() {
  ::testing::TestPartResultArray array;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::
            INTERCEPT_ONLY_CURRENT_THREAD,
        &array);
    CheckKernels(Cases(), {Kernel<Right>()}, {Kernel<body>()});
  }
  std::string text;
  for (int i = 0; i < array.size(); ++i)
    text += array.GetTestPartResult(i).message();
  return text;
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Conformance, PassesWhatIsRight) { EXPECT_EQ(Failures<Right>(), ""); }

TEST(Conformance, FailsWhatIsWrong) {
  EXPECT_TRUE(Contains(Failures<WritesGap>(), "were overwritten"));
  EXPECT_TRUE(Contains(Failures<ReadsGap>(), "nan"));
  EXPECT_TRUE(Contains(Failures<WritesOperand>(), "operand 0 was written"));
  EXPECT_TRUE(Contains(Failures<ReadsWorkspace>(), "nan"));
  EXPECT_TRUE(Contains(Failures<OverrunsWorkspace>(), "workspace"));
  EXPECT_TRUE(Contains(Failures<DependsOnTheRange>(), "bits differ"));
  EXPECT_TRUE(Contains(Failures<ForgetsAnElement>(), "nan"));
  EXPECT_TRUE(Contains(Failures<IsInaccurate>(), "the truth is"));
}

TEST(Conformance, TiedOperandsStartWithTheirValues) {
  OpCase op_case = Cases()[0];
  op_case.attributes.SetInt("accumulate", 1);
  op_case.operands.push_back(TensorType(DType::kF32, {10, 4}));
  op_case.operands[1].values.assign(40, 3.0);
  const KernelDef kernels[] = {Kernel<AddsColumn>()};
  const auto results =
      Evaluate(op_case, absl::Span<const KernelDef>(kernels), true);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0][1], 3.0);
  const double x = results[0][0] - 3.0;
  EXPECT_TRUE(x >= -1 && x < 1 && x != 0);
}

TEST(Conformance, SetsOfNames) {
  EXPECT_EQ(CoveredOps(Cases()), std::set<std::string>{"twice"});
  const OpDef* const ops[] = {&Twice()};
  EXPECT_EQ(NamesOf(ops), CoveredOps({Kernel<Right>()}));
}

}  // namespace
}  // namespace shardgraph
