// One suite that every transport must pass: exact results, the same bits
// everywhere, groups and channels. A test links it and instantiates
// CollectiveTest for its worlds.
#ifndef KERNELS_COLLECTIVE_COLLECTIVE_CONFORMANCE_H_
#define KERNELS_COLLECTIVE_COLLECTIVE_CONFORMANCE_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/collective/test_ranks.h"

namespace shardgraph {

class CollectiveTest : public testing::TestWithParam<TestWorld> {
 public:
  static constexpr absl::Duration kLong = absl::Seconds(120);

 protected:
  std::vector<RankResult> Run(const RankBody& body,
                              absl::Duration timeout = kLong) {
    return RunRanks(GetParam(), timeout, body);
  }
  std::vector<std::string> RunOk(const RankBody& body) {
    std::vector<std::string> outputs;
    for (const RankResult& result : Run(body)) {
      EXPECT_TRUE(result.status.ok()) << result.status;
      outputs.push_back(result.output);
    }
    return outputs;
  }
};

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_COLLECTIVE_CONFORMANCE_H_
