// One planted bug for each sanitizer: proves that the sanitizer configs of
// .bazelrc really stop a test. The macros are defined there.

#include <cstdio>
#include <limits>
#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace {

[[maybe_unused]] void ReadPastTheEnd() {
  const auto values = std::make_unique<int[]>(4);
  volatile int index = 4;
  std::printf("%d\n", values.get()[index]);
}

[[maybe_unused]] void OverflowASignedInteger() {
  volatile int value = std::numeric_limits<int>::max();
  value = value + 1;
  std::printf("%d\n", value);
}

[[maybe_unused]] void RaceOnAnInteger() {
  int value = 0;
  auto count = [&value] {
    for (int i = 0; i < 100000; ++i) ++value;
  };
  std::thread a(count);
  std::thread b(count);
  a.join();
  b.join();
  std::printf("%d\n", value);
}

TEST(PlantedBugsDeathTest, IsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int sanitizers = 0;
#ifdef SG_ASAN
  EXPECT_DEATH(ReadPastTheEnd(), "heap-buffer-overflow");
  ++sanitizers;
#endif
#ifdef SG_UBSAN
  EXPECT_DEATH(OverflowASignedInteger(), "signed integer overflow");
  ++sanitizers;
#endif
#ifdef SG_TSAN
  EXPECT_DEATH(RaceOnAnInteger(), "data race");
  ++sanitizers;
#endif
  EXPECT_GE(sanitizers, 1) << "build with --config=asan, ubsan or tsan";
}

}  // namespace
