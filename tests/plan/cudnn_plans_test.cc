// Attention of the presets as cuDNN would run it on A100, H100 and H200,
// planned without a GPU: supported, by a fused engine, within the workspace
// that stands in the plan.

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/config/train_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/attention/cudnn.h"
#include "kernels/attention/cudnn_graph.h"
#include "kernels/cuda/libraries.h"
#include "kernels/status_macros.h"
#include "tests/plan/preset_plan.h"
#include "tools/presets/presets.h"

namespace shardgraph {
namespace {

using ::testing::HasSubstr;

// False, with a skipped test, where cuDNN is not installed. It looks for a
// driver before it plans; one without a device will do.
bool LoadLibraries() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const std::string path = DataPath("tests/fake_cuda/libcuda_no_device.so");
    EXPECT_NE(dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr)
        << dlerror();
  }
  return cuda::LoadCudnn().ok();
}

struct Device {
  std::string target;
  std::string name;
  int architecture;
  int multiprocessors;
  int shared_bytes;
  int64_t memory_bytes;
  int memory_clock;  // kHz
  int64_t l2_bytes;

  std::string Json() const {
    return absl::StrCat(
        R"({"maxGridSize":[2147483647,65535,65535],)",
        R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)",
        R"("multiProcessorCount":)", multiprocessors,
        R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,)",
        R"("maxSharedMemoryPerBlockOptin":)", shared_bytes,
        R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)",
        R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,)",
        R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)",
        R"("supportCoopLaunch":1,"totalGlobalMem":)", memory_bytes,
        R"(,"smClockRateKHz":1980000,"memClockRateKHz":)", memory_clock,
        R"(,"l2CacheSize":)", l2_bytes, R"(,"cudaDeviceId":0,"deviceVer":)",
        architecture * 10, R"(,"driverVer":13000,"deviceName":")", name,
        R"("})");
  }
};

const std::vector<Device>& Devices() {
  static const auto& devices =
      *new std::vector<Device>{{"a100", "NVIDIA A100-SXM4-80GB", 80, 108,
                                166912, 85198045184, 1593000, 41943040},
                               {"h100", "NVIDIA H100 80GB HBM3", 90, 132,
                                232448, 85017755648, 2619000, 52428800},
                               {"h200", "NVIDIA H200", 90, 132, 232448,
                                150754820096, 3201000, 62914560}};
  return devices;
}

bool Long() { return std::getenv("ALL_CUDNN_PLANS") != nullptr; }

// One node each of attention and its gradient; what differs between layers is
// their memory alone.
std::vector<Node> AttentionNodes(const Graph& graph) {
  std::vector<Node> nodes;
  std::set<std::string> seen;
  for (const Node& node : graph.nodes) {
    if (node.op == nullptr) continue;
    const std::string op(node.op->name);
    if ((op == "attention" || op == "attention_gradient") &&
        seen.insert(op).second) {
      nodes.push_back(node);
    }
  }
  return nodes;
}

// `with_fast`: the gradient without a fixed order of sums as well.
void CheckPlans(const std::string& preset, const Device& device,
                bool with_fast) {
  const auto planned = PlanPreset(preset, 8, device.target);
  const Graph& graph = planned->graph();
  const std::vector<Node> nodes = AttentionNodes(graph);
  ASSERT_EQ(nodes.size(), 2u);
  for (const Node& node : nodes) {
    SCOPED_TRACE(std::string(node.op->name));
    const std::vector<TensorType> operands = graph.OperandTypes(node);
    const std::vector<TensorType> results = graph.ResultTypes(node);
    const absl::Status supports =
        CudnnSupports(node.attributes, operands, results);
    ASSERT_TRUE(supports.ok()) << supports;
    const bool gradient = results.size() == 3;
    const int first = gradient ? 1 : 0;
    AttentionConfig config(node.attributes, operands[first],
                           operands[first + 1]);
    for (const bool fast : {false, true}) {
      if (fast && (!gradient || !with_fast)) continue;
      config.fast = fast;
      const CudnnCalls calls = CudnnCallsOf(config, gradient);
      const auto plan =
          cudnn::MakePlan(cudnn::ShapeOf(config, calls, operands, results),
                          nullptr, device.Json(), calls.library_bytes);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_GT(plan->engine, 0);
      EXPECT_THAT(plan->kernel, HasSubstr(absl::StrCat(
                                    "sdpa_sm", device.architecture, "_flash_",
                                    gradient ? "bprop" : "fprop")));
      // The bound is not far off.
      EXPECT_GE(plan->workspace,
                gradient && !fast ? calls.library_bytes / 2 : 0);
      if (fast) continue;
      ASSERT_NE(node.workspace, kNone);
      const int64_t bytes = graph.buffers[node.workspace].bytes;
      EXPECT_GE(bytes, calls.library + plan->workspace);
      EXPECT_EQ(bytes, calls.bytes);
      // Of a deterministic gradient: 1 GiB of scores and what else it takes.
      EXPECT_LE(bytes, int64_t{5} << 28);
    }
  }
}

TEST(CudnnPlans, PresetsArePlannedWithoutAGpu) {
  if (!LoadLibraries()) GTEST_SKIP() << "cuDNN is not installed";
  const std::vector<std::string> presets =
      PresetNames(DataPath("proto/configs"));
  EXPECT_GE(presets.size(), 7u);
  const std::vector<Device>& devices = Devices();
  for (size_t p = 0; p < presets.size(); ++p) {
    for (size_t d = 0; d < devices.size(); ++d) {
      // Each preset, and each device with both gradients, in short; the long
      // form pairs all.
      if (!Long() && p % devices.size() != d) continue;
      SCOPED_TRACE(presets[p] + " on " + devices[d].target);
      CheckPlans(presets[p], devices[d], Long() || p < devices.size());
    }
  }
}

// What the rule lets through at its edges, and what the library says no to.
TEST(CudnnPlans, RuleAgreesWithTheLibrary) {
  if (!LoadLibraries()) GTEST_SKIP() << "cuDNN is not installed";
  const auto plan = [](int64_t width, int64_t length) {
    const TensorType type(DType::kBF16, {1, length, 2, width});
    const AttentionConfig config(Attributes().SetInt("causal", 1), type, type);
    const CudnnCalls calls = CudnnCallsOf(config, false);
    const TensorType lse(DType::kF32, {1, 2, length});
    const std::vector<TensorType> operands = {type, type, type};
    const std::vector<TensorType> results = {type, lse};
    EXPECT_EQ(
        CudnnSupports(Attributes().SetInt("causal", 1), operands, results).ok(),
        width % 8 == 0);
    return cudnn::MakePlan(cudnn::ShapeOf(config, calls, operands, results),
                           nullptr, Devices()[0].Json(), calls.library_bytes)
        .status();
  };
  EXPECT_TRUE(plan(8, 1).ok()) << plan(8, 1);
  const absl::Status odd = plan(68, 64);
  EXPECT_EQ(odd.code(), absl::StatusCode::kUnimplemented) << odd;
  EXPECT_THAT(odd.message(), HasSubstr("cuDNN has no engine for it"));
}

}  // namespace
}  // namespace shardgraph
