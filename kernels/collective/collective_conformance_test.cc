#include "kernels/collective/collective_conformance.h"

#include "gtest/gtest.h"
#include "kernels/collective/test_ranks.h"

namespace shardgraph {
namespace {

INSTANTIATE_TEST_SUITE_P(All, CollectiveTest,
                         testing::ValuesIn(AllTestWorlds()), TestWorldName);

}  // namespace
}  // namespace shardgraph
