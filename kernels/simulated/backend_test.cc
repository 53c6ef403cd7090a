#include "kernels/simulated/backend.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/kernel.h"
#include "kernels/op_table.h"

namespace shardgraph {
namespace {

double NoTime(const OpDef&, const Attributes&, absl::Span<const TensorType>,
              absl::Span<const TensorType>) {
  return 0;
}

TEST(SimulatedBackendTest, HasAKernelForEveryOp) {
  SimulatedBackend backend(NoTime);
  ASSERT_FALSE(AllOps().empty());
  for (const OpDef* op : AllOps()) {
    EXPECT_TRUE(backend.kernels().Find(op->name, Attributes(), {}, {}).ok())
        << op->name;
  }
  EXPECT_FALSE(backend.kernels().Has("no such op"));
}

TEST(SimulatedBackendTest, KernelsTakeWhatTheCostFunctionSays) {
  // 1 GFLOP/s.
  SimulatedBackend backend([](const OpDef& op, const Attributes& attributes,
                              absl::Span<const TensorType> operands,
                              absl::Span<const TensorType> results) {
    return CostOf(op, attributes, operands, results).matmul_flops * 1e-9;
  });
  ASSERT_TRUE(backend.Prepare(1, 0).ok());
  const OpDef* const op = FindOp("matmul");
  ASSERT_NE(op, nullptr);
  Attributes attributes;
  std::unique_ptr<PreparedKernel> kernel;
  {
    // The spans do not outlive this block.
    std::vector<Tensor> operands = {
        {nullptr, TensorType(DType::kF32, {20, 30})},
        {nullptr, TensorType(DType::kF32, {30, 50})}};
    std::vector<Tensor> results = {
        {nullptr, TensorType(DType::kF32, {20, 50})}};
    const auto def = backend.kernels().Find(op->name, attributes, {}, {});
    ASSERT_TRUE(def.ok());
    KernelContext context;
    context.op = op;
    context.attributes = &attributes;
    context.operands = operands;
    context.results = results;
    auto prepared = (*def)->prepare(context);
    ASSERT_TRUE(prepared.ok());
    kernel = *std::move(prepared);
  }
  backend.Launch(0, kernel.get());
  ASSERT_TRUE(backend.Synchronize().ok());
  EXPECT_DOUBLE_EQ(backend.now(), 2.0 * 20 * 30 * 50 * 1e-9);
  ASSERT_EQ(backend.timeline().size(), 1u);
  EXPECT_EQ(backend.timeline()[0].name, "matmul");
  EXPECT_EQ(backend.timeline()[0].kernel, kernel.get());
}

// A forward pass over `units` units: gathers on lane 1, `slots` of them ahead
// of the compute lane, which takes 1 second per unit.
class Pipeline {
 public:
  Pipeline(int units, int slots, double gather_seconds)
      : units_(units),
        slots_(slots),
        gather_(MakeSimulatedKernel("gather", gather_seconds)),
        compute_(MakeSimulatedKernel("compute", 1)) {}

  // Event u: gather of u is there; event units + u: u is computed.
  int num_events() const { return 2 * units_; }
  void Walk(Backend& backend) const {
    int gathered = 0;
    for (int u = 0; u < units_; ++u) {
      for (; gathered < units_ && gathered < u + slots_; ++gathered) {
        if (gathered >= slots_) backend.Wait(1, units_ + gathered - slots_);
        backend.Launch(1, gather_.get());
        backend.Record(1, gathered);
      }
      backend.Wait(0, u);
      backend.Launch(0, compute_.get());
      backend.Record(0, units_ + u);
    }
  }

 private:
  const int units_;
  const int slots_;
  const std::unique_ptr<PreparedKernel> gather_;
  const std::unique_ptr<PreparedKernel> compute_;
};

TEST(SimulatedBackendTest, PrefetchHidesGathers) {
  constexpr int kUnits = 8;
  for (const double gather : {0.25, 0.5, 1.0, 1.5}) {
    for (const int slots : {1, 2, 3}) {
      SimulatedBackend backend(NoTime);
      const Pipeline pipeline(kUnits, slots, gather);
      ASSERT_TRUE(backend.Prepare(2, pipeline.num_events()).ok());
      pipeline.Walk(backend);
      ASSERT_TRUE(backend.Synchronize().ok());
      // One slot: nothing overlaps. More: only what does not fit under a unit's
      // second is left, and the first gather.
      const double idle =
          slots == 1 ? kUnits * gather
                     : gather + (kUnits - 1) * std::fmax(0.0, gather - 1);
      EXPECT_DOUBLE_EQ(backend.now(), kUnits + idle);
      const LaneTime compute =
          TimeOfLane(backend.timeline(), 0, 0, backend.now());
      EXPECT_DOUBLE_EQ(compute.busy, kUnits);
      EXPECT_DOUBLE_EQ(compute.idle, idle);
      EXPECT_DOUBLE_EQ(TimeOfLane(backend.timeline(), 1, 0, backend.now()).busy,
                       kUnits * gather);
      // The waits that launches show add up to the idle time.
      double waited = 0;
      for (const SimulatedLaunch& launch : backend.timeline()) {
        if (launch.lane == 0) waited += launch.begin - launch.ready;
      }
      EXPECT_DOUBLE_EQ(waited, idle);
    }
  }
}

TEST(SimulatedBackendTest, TimeOfLaneClipsToTheWindow) {
  const std::vector<SimulatedLaunch> timeline = {
      {.lane = 0, .begin = 1, .end = 3},
      {.lane = 1, .begin = 0, .end = 9},
      {.lane = 0, .begin = 4, .end = 6}};
  const LaneTime time = TimeOfLane(timeline, 0, 2, 4.5);
  EXPECT_DOUBLE_EQ(time.busy, 1.5);
  EXPECT_DOUBLE_EQ(time.idle, 1.0);
  EXPECT_DOUBLE_EQ(TimeOfLane(timeline, 2, 2, 4.5).idle, 2.5);
}

TEST(SimulatedBackendTest, ReplayTakesTheTimeOfAnEagerRun) {
  SimulatedBackend backend(NoTime);
  const Pipeline pipeline(5, 2, 0.75);
  ASSERT_TRUE(backend.Prepare(2, pipeline.num_events()).ok());
  pipeline.Walk(backend);
  ASSERT_TRUE(backend.Synchronize().ok());
  const double once = backend.now();
  const std::vector<SimulatedLaunch> eager = backend.timeline();
  backend.ResetClock();
  EXPECT_EQ(backend.now(), 0);
  ASSERT_TRUE(backend.BeginCapture().ok());
  pipeline.Walk(backend);
  const auto recording = backend.EndCapture();
  ASSERT_TRUE(recording.ok());
  EXPECT_TRUE(backend.timeline().empty());
  constexpr int kReplays = 3;
  for (int i = 0; i < kReplays; ++i) backend.Replay(recording->get());
  ASSERT_TRUE(backend.Synchronize().ok());
  EXPECT_DOUBLE_EQ(backend.now(), kReplays * once);
  ASSERT_EQ(backend.timeline().size(), kReplays * eager.size());
  for (size_t i = 0; i < backend.timeline().size(); ++i) {
    const SimulatedLaunch& launch = backend.timeline()[i];
    const SimulatedLaunch& expected = eager[i % eager.size()];
    const double start = once * (i / eager.size());
    EXPECT_EQ(launch.lane, expected.lane);
    EXPECT_EQ(launch.kernel, expected.kernel);
    EXPECT_DOUBLE_EQ(launch.ready, start + expected.ready);
    EXPECT_DOUBLE_EQ(launch.begin, start + expected.begin);
    EXPECT_DOUBLE_EQ(launch.end, start + expected.end);
  }
}

TEST(SimulatedBackendTest, AnEventNeverRecordedIsNoReasonToWait) {
  SimulatedBackend backend(NoTime);
  ASSERT_TRUE(backend.Prepare(2, 2).ok());
  const auto kernel = MakeSimulatedKernel("k", 2);
  backend.Launch(0, kernel.get());
  backend.Record(0, 0);
  backend.Launch(0, kernel.get());  // behind the Record: not waited for
  backend.Wait(1, 1);
  backend.Launch(1, kernel.get());
  EXPECT_EQ(backend.timeline().back().begin, 0);
  backend.Wait(1, 0);
  backend.Launch(1, kernel.get());
  EXPECT_EQ(backend.timeline().back().begin, 2);
}

TEST(SimulatedBackendTest, AHostThatWaitsKeepsAllLanesBack) {
  SimulatedBackend backend(NoTime);
  ASSERT_TRUE(backend.Prepare(2, 0).ok());
  const auto kernel = MakeSimulatedKernel("k", 2);
  backend.Launch(0, kernel.get());
  int32_t host = 7;
  ASSERT_TRUE(backend.CopyToHost(&host, nullptr, sizeof(host)).ok());
  EXPECT_EQ(host, 0);
  backend.Launch(1, kernel.get());
  EXPECT_EQ(backend.timeline().back().begin, 2);
  EXPECT_EQ(backend.timeline().back().ready, 2);
}

TEST(SimulatedBackendTest, MemoryIsAddressSpace) {
  SimulatedBackend backend(NoTime);
  // More than any machine that runs this has.
  const auto data = backend.Allocate(int64_t{1} << 38);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*data) % 4096, 0u);
  EXPECT_TRUE(backend.Allocate(0).ok());
  EXPECT_EQ(backend.Allocate(-1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend.Allocate(int64_t{1} << 60).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SimulatedBackendTest, BadCostsAndForeignKernelsAreErrors) {
  for (const double seconds :
       {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    SimulatedBackend backend(NoTime);
    ASSERT_TRUE(backend.Prepare(1, 0).ok());
    const auto bad = MakeSimulatedKernel("bad", seconds);
    const auto good = MakeSimulatedKernel("good", 1);
    backend.Launch(0, good.get());
    backend.Launch(0, bad.get());
    backend.Launch(0, good.get());
    const absl::Status status = backend.Synchronize();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("bad"), std::string::npos);
    EXPECT_EQ(backend.timeline().size(), 1u);
  }
  SimulatedBackend backend(NoTime);
  ASSERT_TRUE(backend.Prepare(1, 0).ok());
  const auto foreign = MakeKernel([](Lane&) {});
  backend.Launch(0, foreign.get());
  EXPECT_EQ(backend.Synchronize().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SimulatedBackendTest, CallsOutOfOrderAreErrors) {
  SimulatedBackend backend(NoTime);
  EXPECT_FALSE(backend.BeginCapture().ok());
  EXPECT_FALSE(backend.EndCapture().ok());
  EXPECT_FALSE(backend.Prepare(0, 0).ok());
  ASSERT_TRUE(backend.Prepare(1, 0).ok());
  EXPECT_FALSE(backend.Prepare(1, 0).ok());
  ASSERT_TRUE(backend.BeginCapture().ok());
  EXPECT_FALSE(backend.BeginCapture().ok());
}

}  // namespace
}  // namespace shardgraph
