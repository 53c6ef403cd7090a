#include <cstdlib>
#include <string>
#include <vector>

#include "fsdp/files/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/doctor/diagnose.h"
#include "tools/doctor/facts.h"
#include "tools/doctor/report.h"

namespace shardgraph::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kGiB = int64_t{1} << 30;

Facts GoodMachine() {
  Facts facts;
  facts.cpu = {.model = "Model X",
               .online_cores = 8,
               .usable_cores = 4,
               .numa_nodes = 1,
               .features = {"avx2", "fma", "avx512f"},
               .targets = {"baseline", "avx2", "avx512"},
               .target = "avx2"};
  facts.memory = {.total = 16 * kGiB,
                  .available = 12 * kGiB,
                  .shm_size = 8 * kGiB,
                  .shm_available = 8 * kGiB};
  facts.limits = {.memlock_bytes = -1, .open_files = 1024};
  facts.libraries = {{"oneDNN", "2.6.3", "linked"}};
  return facts;
}

Facts GoodGpuMachine() {
  Facts facts = GoodMachine();
  facts.cuda = {.built_version = 13000,
                .device_files = true,
                .driver_version = 13000,
                .runtime_version = 13000,
                .gpus = {{"GPU", "9.0", 80 * kGiB}},
                .libraries = {{"cudart", "13.0", "libcudart.so"},
                              {"NCCL", "2.28.9", "libnccl.so.2"}}};
  return facts;
}

// The one problem of a machine that differs from a good one in one thing.
Problem OnlyProblem(const Facts& facts) {
  const std::vector<Problem> problems = Diagnose(facts);
  EXPECT_THAT(problems, SizeIs(1));
  if (problems.empty()) return {};
  EXPECT_FALSE(problems[0].remedy.empty());
  return problems[0];
}

TEST(DiagnoseTest, GoodMachinesHaveNoProblems) {
  EXPECT_THAT(Diagnose(GoodMachine()), IsEmpty());
  EXPECT_THAT(Diagnose(GoodGpuMachine()), IsEmpty());
}

TEST(DiagnoseTest, UnknownSizesAreNoProblem) {
  Facts facts = GoodMachine();
  facts.memory = {};
  facts.limits = {};
  EXPECT_THAT(Diagnose(facts), IsEmpty());
}

TEST(DiagnoseTest, SlowCpu) {
  Facts facts = GoodMachine();
  facts.cpu.features = {"sse2"};
  EXPECT_FALSE(OnlyProblem(facts).fatal);
  facts = GoodMachine();
  facts.cpu.amx_permission = true;
  EXPECT_THAT(Diagnose(facts), IsEmpty());
  facts.cpu.amx_permission = false;
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("AMX"));
}

TEST(DiagnoseTest, SharedMemory) {
  Facts facts = GoodMachine();
  facts.memory.shm_available = 64 << 20;  // Docker's default
  EXPECT_FALSE(OnlyProblem(facts).fatal);
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("64 MiB"));
  facts.memory.shm_error = "shm_open: Permission denied";
  EXPECT_TRUE(OnlyProblem(facts).fatal);
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("Permission denied"));
  EXPECT_THAT(OnlyProblem(facts).remedy, HasSubstr("--shm-size"));
}

TEST(DiagnoseTest, ContainerLimitCountsAsMemory) {
  Facts facts = GoodMachine();
  facts.memory.container_limit = 512 << 20;
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("512 MiB"));
}

TEST(DiagnoseTest, Limits) {
  Facts facts = GoodMachine();
  facts.limits.open_files = 1023;
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("1023"));
  facts = GoodMachine();
  facts.limits.memlock_bytes = 8 << 20;
  EXPECT_THAT(Diagnose(facts), IsEmpty());  // nothing here locks memory
  facts.network.infiniband = true;
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("8 MiB"));
}

TEST(DiagnoseTest, Launchers) {
  Facts facts = GoodMachine();
  facts.launch = {.launcher = "torchrun",
                  .variables = {{"RANK", "1"},
                                {"WORLD_SIZE", "2"},
                                {"MASTER_ADDR", "host"},
                                {"MASTER_PORT", "29500"}}};
  EXPECT_THAT(Diagnose(facts), IsEmpty());
  facts.launch.variables[0].second = "2";
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("RANK='2'"));
  EXPECT_TRUE(OnlyProblem(facts).fatal);
  facts.launch.variables[0].second = "1";
  facts.launch.variables.pop_back();
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("MASTER_PORT"));
  EXPECT_TRUE(OnlyProblem(facts).fatal);
  facts.launch = {.launcher = "Slurm", .variables = {{"SLURM_PROCID", "0"}}};
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("SLURM_NTASKS=''"));
  EXPECT_FALSE(OnlyProblem(facts).fatal);
}

TEST(DiagnoseTest, CudaAnswers) {
  Facts facts = GoodGpuMachine();
  CudaFacts& cuda = facts.cuda;
  cuda.gpus.clear();
  cuda.device_count_error = 35;
  cuda.driver_version = 12040;
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("up to 12.4, too old"));
  cuda.driver_version = 0;
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("libcuda.so.1"));
  cuda.device_files = false;  // a machine without a GPU is no problem
  EXPECT_THAT(Diagnose(facts), IsEmpty());
  EXPECT_EQ(ExplainGpuAnswer(cuda), "no NVIDIA driver");
  cuda.device_count_error = 34;
  EXPECT_THAT(OnlyProblem(facts).remedy, HasSubstr("stubs"));
  cuda.device_files = true;
  cuda.device_count_error = 100;
  EXPECT_THAT(OnlyProblem(facts).remedy, HasSubstr("CUDA_VISIBLE_DEVICES"));
  cuda.device_count_error = 999;
  cuda.device_count_text = "unknown error";
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("999 (unknown error)"));
}

TEST(DiagnoseTest, Windows) {
  CudaFacts cuda = GoodGpuMachine().cuda;
  EXPECT_EQ(ExplainWindows(cuda), "no NCCL: one GPU only");
  cuda.nccl_version = 22700;
  EXPECT_THAT(ExplainWindows(cuda), HasSubstr("fewer than two"));
  cuda.gpus.assign(3, cuda.gpus[0]);
  cuda.peer_pairs = 6;
  cuda.linked_pairs = 4;
  EXPECT_THAT(ExplainWindows(cuda), HasSubstr("NVLink connects 4 of 6 pairs"));
  cuda.linked_pairs = 6;
  EXPECT_THAT(ExplainWindows(cuda),
              HasSubstr("windows: used, unless NCCL_WIN_ENABLE=0 is set; "
                        "zero-SM gathers: need NCCL 2.28"));
  cuda.nccl_version = 22809;
  EXPECT_THAT(ExplainWindows(cuda), HasSubstr("NCCL_CTA_POLICY=2 turns them"));
}

TEST(DiagnoseTest, CudaBuilds) {
  Facts facts = GoodGpuMachine();
  facts.cuda.libraries[1].version = "";
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("NCCL"));
  facts = GoodGpuMachine();
  facts.cuda.runtime_version = 12080;
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("12.8"));
  facts.cuda.built_version = 0;
  EXPECT_THAT(OnlyProblem(facts).what, HasSubstr("built without CUDA"));
}

TEST(DiagnoseTest, FatalProblemsComeFirst) {
  Facts facts = GoodMachine();
  facts.cpu.features.clear();
  facts.network.loopback_error = "connecting to 127.0.0.1: refused";
  const std::vector<Problem> problems = Diagnose(facts);
  ASSERT_THAT(problems, SizeIs(2));
  EXPECT_TRUE(problems[0].fatal);
  EXPECT_FALSE(problems[1].fatal);
  EXPECT_FALSE(IsUsable(problems));
  EXPECT_TRUE(IsUsable({problems[1]}));
}

TEST(ReportTest, TextEndsWithProblemsAndRemedies) {
  const Facts facts = GoodGpuMachine();
  const std::string good = TextReport(facts, {});
  EXPECT_THAT(good, HasSubstr("Model X, 8 cores, 4 usable here"));
  EXPECT_THAT(good, HasSubstr("AVX2, FMA, AVX-512, AVX-512 BF16 no"));
  EXPECT_THAT(good,
              HasSubstr("kernels for avx2; there are baseline, avx2, avx512"));
  EXPECT_THAT(good, HasSubstr("NCCL 2.28.9"));
  EXPECT_THAT(good, HasSubstr("compute capability 9.0, 80.0 GiB"));
  EXPECT_THAT(good, testing::EndsWith("No problems found.\n"));
  EXPECT_THAT(TextReport(facts, {{true, "Broken.", "Mend it."}}),
              testing::EndsWith("error: Broken.\n    remedy: Mend it.\n"));
}

TEST(ReportTest, JsonParsesBack) {
  const auto json = ParseJson(
      JsonReport(GoodGpuMachine(), {{true, "Broken \"now\".", "Mend it."}}));
  EXPECT_EQ(json["usable"], false);
  EXPECT_EQ(json["cpu"]["features"]["avx2"], true);
  EXPECT_EQ(json["cpu"]["features"]["amx_tile"], false);
  EXPECT_TRUE(json["cpu"]["amx_permission"].is_null());
  EXPECT_EQ(json["cpu"]["targets"].size(), 3);
  EXPECT_EQ(json["cpu"]["target"], "avx2");
  EXPECT_EQ(json["memory"]["total"], 16 * kGiB);
  EXPECT_EQ(json["cuda"]["gpus"][0]["memory_bytes"], 80 * kGiB);
  EXPECT_EQ(json["problems"][0]["what"], "Broken \"now\".");
}

TEST(GatherTest, FindsThisMachine) {
  const Facts facts = GatherFacts();
  EXPECT_GE(facts.cpu.online_cores, 1);
  EXPECT_GE(facts.cpu.usable_cores, 1);
  EXPECT_GT(facts.memory.total, 0);
  EXPECT_LE(facts.memory.available, facts.memory.total);
  EXPECT_EQ(facts.network.loopback_error, "");
  EXPECT_EQ(facts.memory.shm_error, "");
  for (const Library& library : facts.libraries) {
    EXPECT_NE(library.version, "") << library.name;
  }
  EXPECT_THAT(facts.cuda.libraries, SizeIs(4));
}

TEST(GatherTest, LauncherVariables) {
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}) {
    unsetenv(name);
  }
  EXPECT_EQ(GatherLaunch().launcher, "");
  setenv("SLURM_PROCID", "3", 1);
  setenv("SLURM_NTASKS", "4", 1);
  EXPECT_EQ(GatherLaunch().launcher, "Slurm");
  EXPECT_EQ(GatherLaunch().Get("SLURM_NTASKS"), "4");
  EXPECT_EQ(GatherLaunch().Get("SLURM_NODEID"), "");
  setenv("RANK", "0", 1);  // torchrun inside a Slurm job
  EXPECT_EQ(GatherLaunch().launcher, "torchrun");
}

}  // namespace
}  // namespace shardgraph::doctor
