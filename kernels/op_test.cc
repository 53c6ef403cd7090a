#include "kernels/op.h"

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

// Results of the shape of operand 0; two of them, the second may accumulate.
absl::Status InferTwo(const Attributes&, absl::Span<const TensorType> operands,
                      std::vector<TensorType>* results) {
  if (operands.size() != 1)
    return absl::InvalidArgumentError("wants one operand");
  results->push_back(TensorType(operands[0].dtype, operands[0].shape));
  results->push_back(TensorType(DType::kF32, operands[0].shape));
  return absl::OkStatus();
}

OpDef Two() {
  OpDef op;
  op.name = "two";
  op.infer = InferTwo;
  op.accumulates = 0b10;
  return op;
}

TEST(InferResults, AccumulatingResultTakesTheTypeOfItsDestination) {
  const TensorType x(DType::kBF16, {2, 3});
  const TensorType destination(DType::kF32, {2, 3}, {8, 1});
  OpDef op = Two();
  op.strided_operands = 0b10;
  std::vector<TensorType> results;
  ASSERT_TRUE(InferResults(op, Attributes().SetInt("accumulate", 2),
                           {x, destination}, &results)
                  .ok());
  EXPECT_EQ(results[1], destination);
  EXPECT_EQ(TiedOperand(op, Attributes().SetInt("accumulate", 2), 2, 2, 1), 1);
  EXPECT_EQ(TiedOperand(op, Attributes().SetInt("accumulate", 2), 2, 2, 0), -1);
}

TEST(InferResults, RefusesWhatTheOpDoesNotAllow) {
  std::vector<TensorType> results;
  const OpDef op = Two();
  const TensorType x(DType::kF32, {2, 3});
  EXPECT_FALSE(
      InferResults(op, Attributes().SetInt("accumulate", 1), {x, x}, &results)
          .ok());
  EXPECT_FALSE(InferResults(op, Attributes(),
                            {TensorType(DType::kF32, {2, 3}, {5, 1})}, &results)
                   .ok());
  EXPECT_FALSE(InferResults(op, Attributes(),
                            {TensorType(DType::kF32, {2, 3}, {6, 2})}, &results)
                   .ok());
  EXPECT_FALSE(InferResults(op, Attributes().SetInt("accumulate", 2),
                            {x, TensorType(DType::kF32, {3, 2})}, &results)
                   .ok());
}

TEST(InferResults, ResultsThatAreLeftOutKeepTheirPlace) {
  OpDef op = Two();
  const TensorType x(DType::kBF16, {2, 3});
  const Attributes omit = Attributes().SetInt("omit", 0b10);
  std::vector<TensorType> results;
  EXPECT_FALSE(InferResults(op, omit, {x}, &results).ok());
  op.optional_results = 0b10;
  ASSERT_TRUE(InferResults(op, omit, {x}, &results).ok());
  EXPECT_EQ(results[0], x);
  EXPECT_EQ(results[1], TensorType(DType::kF32, {0}));
  EXPECT_TRUE(Omits(omit, 1));
  EXPECT_FALSE(Omits(omit, 0));
  EXPECT_FALSE(InferResults(op, Attributes(omit).SetInt("accumulate", 0b10),
                            {x, TensorType(DType::kF32, {0})}, &results)
                   .ok());
}

TEST(TiedOperand, SeveralAccumulatingResultsTakeTheLastOperandsInOrder) {
  OpDef op = Two();
  op.accumulates = 0b111;
  const Attributes attributes = Attributes().SetInt("accumulate", 0b101);
  EXPECT_EQ(TiedOperand(op, attributes, 5, 3, 0), 3);
  EXPECT_EQ(TiedOperand(op, attributes, 5, 3, 1), -1);
  EXPECT_EQ(TiedOperand(op, attributes, 5, 3, 2), 4);
}

TEST(Attributes, AreOrderedByName) {
  const Attributes a = Attributes().SetInt("b", 1).SetDouble("a", 0.1);
  const Attributes b = Attributes().SetDouble("a", 0.1).SetInt("b", 1);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.ToString(), "a=0.10000000000000001 b=1");
  EXPECT_EQ(a.Int("c", 7), 7);
}

}  // namespace
}  // namespace shardgraph
