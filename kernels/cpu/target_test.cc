#include "kernels/cpu/target.h"

#include <cstdlib>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TEST(CpuTargetTest, NamesDiffer) {
  std::set<std::string> names;
  for (const CpuTarget target : SupportedCpuTargets())
    EXPECT_TRUE(names.insert(CpuTargetName(target)).second);
  EXPECT_TRUE(names.contains("baseline"));
}

// The variable is read once, therefore each time by a process of its own.
[[noreturn]] void ExitWithBestTarget(const char* variable) {
  setenv("SHARDGRAPH_CPU_TARGET", variable, /*overwrite=*/1);
  std::_Exit(100 + static_cast<int>(BestCpuTarget()));
}

TEST(CpuTargetTest, TheVariableNamesTheBest) {
  for (const CpuTarget target : SupportedCpuTargets()) {
    EXPECT_EXIT(ExitWithBestTarget(CpuTargetName(target)),
                testing::ExitedWithCode(100 + static_cast<int>(target)), "");
  }
}

TEST(CpuTargetTest, AnUnknownNameEndsTheProgram) {
  EXPECT_EXIT(ExitWithBestTarget("avx9"), testing::ExitedWithCode(2),
              "SHARDGRAPH_CPU_TARGET=avx9: .* one of: baseline");
}

}  // namespace
}  // namespace shardgraph
