#include "kernels/collective/store.h"

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(1);

TEST(InProcessStoreTest, SetGetAddCheckDelete) {
  InProcessStore store;
  ASSERT_TRUE(store.Set("a", std::string("x\0y", 3)).ok());
  EXPECT_EQ(*store.Get("a", kShort), std::string("x\0y", 3));
  EXPECT_EQ(*store.Add("n", 5), 5);
  EXPECT_EQ(*store.Add("n", -7), -2);
  EXPECT_EQ(*store.Get("n", kShort), "-2");
  EXPECT_TRUE(*store.Check({"a", "n"}));
  EXPECT_FALSE(*store.Check({"a", "b"}));
  EXPECT_TRUE(*store.Delete("a"));
  EXPECT_FALSE(*store.Delete("a"));
  EXPECT_FALSE(*store.Check({"a"}));
}

TEST(InProcessStoreTest, AddToText) {
  InProcessStore store;
  ASSERT_TRUE(store.Set("a", "text").ok());
  EXPECT_THAT(std::string(store.Add("a", 1).status().message()),
              HasSubstr("'a'"));
}

TEST(InProcessStoreTest, WaitNamesWhatIsMissing) {
  InProcessStore store;
  ASSERT_TRUE(store.Set("a", "").ok());
  const absl::Status status = store.Wait({"a", "b", "c"}, kShort);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'b', 'c'"));
}

TEST(InProcessStoreTest, GetWaitsForSet) {
  InProcessStore store;
  std::thread setter([&] { EXPECT_TRUE(store.Set("key", "value").ok()); });
  EXPECT_EQ(*store.Get("key", kLong), "value");
  setter.join();
  EXPECT_EQ(*store.Get("key", absl::InfiniteDuration()), "value");
}

TEST(PrefixStoreTest, KeepsApart) {
  InProcessStore store;
  PrefixStore one(store, "one");
  PrefixStore two(one, "two");
  ASSERT_TRUE(two.Set("key", "deep").ok());
  EXPECT_EQ(*store.Get("one/two/key", kShort), "deep");
  EXPECT_FALSE(*one.Check({"key"}));
  EXPECT_TRUE(*one.Check({"two/key"}));
  EXPECT_TRUE(two.Wait({"key"}, kShort).ok());
  EXPECT_EQ(*one.Add("n", 2), 2);
  EXPECT_EQ(*two.Add("n", 3), 3);
  EXPECT_TRUE(*one.Delete("two/key"));
  EXPECT_FALSE(*two.Check({"key"}));
}

TEST(ExchangeThroughStoreTest, AllBringAll) {
  InProcessStore store;
  std::vector<std::vector<std::string>> got(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      got[rank] = *ExchangeThroughStore(store, "hosts", rank, {0, 1, 2},
                                        "host" + std::to_string(rank), kLong);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& values : got) {
    EXPECT_THAT(values, ElementsAre("host0", "host1", "host2"));
  }
}

TEST(ExchangeThroughStoreTest, NamesTheMissing) {
  InProcessStore store;
  ASSERT_TRUE(store.Set("hosts/rank_2", "x").ok());
  const absl::Status status =
      ExchangeThroughStore(store, "hosts", 0, {0, 1, 2, 3}, "y", kShort)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1, 3 did not"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'hosts'"));
}

}  // namespace
}  // namespace shardgraph
