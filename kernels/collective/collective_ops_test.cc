#include "kernels/collective/collective_ops.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/collective/communicator.h"

namespace shardgraph {
namespace {

// Writes down what it is asked to do.
class FakeCommunicator final : public Communicator {
 public:
  explicit FakeCommunicator(int size) : size_(size) {}
  int rank() const override { return 1; }
  int size() const override { return size_; }

  absl::Status AllGather(const void* shard, void* full, int64_t count,
                         DType dtype, Lane&) override {
    return Note("all_gather", shard, full, count, dtype);
  }
  absl::Status ReduceScatter(const void* full, void* shard, int64_t count,
                             DType dtype, Lane&) override {
    return Note("reduce_scatter", full, shard, count, dtype);
  }
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                         Lane&) override {
    return Note(op == ReduceOp::kMax ? "max" : "sum", data, data, count, dtype);
  }
  absl::Status AllToAll(const void* send, void* receive, int64_t count,
                        DType dtype, Lane&) override {
    return Note("all_to_all", send, receive, count, dtype);
  }
  absl::Status Broadcast(void*, int64_t, DType, int, Lane&) override {
    return absl::OkStatus();
  }
  absl::Status Barrier(Lane&) override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}

  std::string call;
  const void* from = nullptr;
  const void* to = nullptr;
  int64_t count = -1;
  DType dtype = DType::kU8;
  absl::Status answer;

 private:
  absl::Status Note(const char* name, const void* in, const void* out,
                    int64_t n, DType type) {
    call = name;
    from = in;
    to = out;
    count = n;
    dtype = type;
    return answer;
  }

  int size_;
};

const OpDef* Op(absl::string_view name) {
  for (const OpDef* op : CollectiveOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

Attributes Group(int64_t size) {
  return Attributes().SetString("group", "shard").SetInt("size", size);
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> Prepare(
    absl::string_view name, const Attributes& attributes, const Tensor& operand,
    const Tensor& result, Communicator* communicator) {
  KernelContext context;
  context.op = Op(name);
  context.attributes = &attributes;
  context.operands = absl::MakeConstSpan(&operand, 1);
  context.results = absl::MakeConstSpan(&result, 1);
  context.communicator = communicator;
  const KernelTable table({CollectiveKernels()});
  const auto kernel =
      table.Find(name, attributes, {operand.type}, {result.type});
  if (!kernel.ok()) return kernel.status();
  return (*kernel)->prepare(context);
}

TEST(CollectiveOps, KernelsPassPointersCountsAndErrorsOn) {
  float memory[20];
  struct Row {
    const char* op;
    int64_t operand, result, count;
    const char* call;
  };
  for (const Row& row : {Row{"all_gather", 2, 6, 2, "all_gather"},
                         Row{"reduce_scatter", 6, 2, 2, "reduce_scatter"},
                         Row{"all_to_all", 6, 6, 2, "all_to_all"},
                         Row{"all_reduce", 6, 6, 6, "sum"}}) {
    SCOPED_TRACE(row.op);
    FakeCommunicator communicator(3);
    const Tensor operand{memory, TensorType(DType::kF32, {row.operand})};
    const Tensor result{row.call == std::string("sum") ? memory : memory + 10,
                        TensorType(DType::kF32, {row.result})};
    std::vector<TensorType> inferred;
    ASSERT_TRUE(
        InferResults(*Op(row.op), Group(3), {operand.type}, &inferred).ok());
    EXPECT_EQ(inferred, std::vector<TensorType>{result.type});
    const auto kernel =
        Prepare(row.op, Group(3), operand, result, &communicator);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    Lane lane;
    EXPECT_TRUE((*kernel)->Launch(lane).ok());
    EXPECT_EQ(communicator.call, row.call);
    EXPECT_EQ(communicator.from, operand.data);
    EXPECT_EQ(communicator.to, result.data);
    EXPECT_EQ(communicator.count, row.count);
    EXPECT_EQ(communicator.dtype, DType::kF32);
    communicator.answer = absl::UnavailableError("rank 2 is lost");
    EXPECT_EQ((*kernel)->Launch(lane), communicator.answer);
  }
}

TEST(CollectiveOps, AllReduceMax) {
  float x = 1;
  FakeCommunicator communicator(2);
  const Tensor tensor{&x, TensorType(DType::kF32, {})};
  const auto kernel = Prepare("all_reduce", Group(2).SetString("reduce", "max"),
                              tensor, tensor, &communicator);
  ASSERT_TRUE(kernel.ok());
  Lane lane;
  EXPECT_TRUE((*kernel)->Launch(lane).ok());
  EXPECT_EQ(communicator.call, "max");
  EXPECT_EQ(communicator.count, 1);
  EXPECT_EQ(TiedOperand(*Op("all_reduce"), Group(2), 1, 1, 0), 0);
}

TEST(CollectiveOps, NeedsTheCommunicatorOfThePlan) {
  float memory[4];
  const Tensor shard{memory, TensorType(DType::kF32, {1})};
  const Tensor full{memory, TensorType(DType::kF32, {2})};
  EXPECT_EQ(
      Prepare("all_gather", Group(2), shard, full, nullptr).status().message(),
      "all_gather: no communicator for the group \"shard\"");
  FakeCommunicator communicator(3);
  EXPECT_EQ(Prepare("all_gather", Group(2), shard, full, &communicator)
                .status()
                .message(),
            "all_gather: the group \"shard\" has 3 ranks, the plan was made "
            "for 2");
}

TEST(CollectiveOps, RefusesWhatDoesNotFit) {
  std::vector<TensorType> results;
  const auto infer = [&](absl::string_view op, TensorType type,
                         const Attributes& attributes) {
    return std::string(
        InferResults(*Op(op), attributes, {type}, &results).message());
  };
  const TensorType five(DType::kF32, {5});
  EXPECT_EQ(infer("all_gather", five, {}),
            "all_gather: attribute group is missing");
  EXPECT_EQ(infer("all_gather", five, Group(0)),
            "all_gather: attribute size is 0, must be at least 1");
  EXPECT_EQ(infer("reduce_scatter", five, Group(2)),
            "reduce_scatter: full is F32[5], must be a multiple of the 2 ranks "
            "of its group");
  EXPECT_EQ(infer("reduce_scatter", TensorType(DType::kBF16, {4}), Group(2)),
            "reduce_scatter: full is BF16[4], must be F32 or F64");
  EXPECT_EQ(infer("all_reduce", five, Group(2).SetString("reduce", "min")),
            "all_reduce: attribute reduce is \"min\", must be \"sum\" or "
            "\"max\"");
}

TEST(CollectiveOps, KernelsAreComplete) {
  const KernelTable table({CollectiveKernels()});
  for (const OpDef* op : CollectiveOps())
    EXPECT_TRUE(table.Has(op->name)) << op->name;
}

}  // namespace
}  // namespace shardgraph
