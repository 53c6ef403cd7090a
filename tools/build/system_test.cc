// Compiles and links one use of every external C++ dependency: a missing
// package, header or archive shows here first.

#include <map>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/container/flat_hash_map.h"
#include "absl/random/random.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/hash_store.h"
#include "gmock/gmock.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "nlohmann/json.hpp"
#include "oneapi/dnnl/dnnl.hpp"
#include "zlib.h"

namespace {

TEST(SystemTest, Abseil) {
  absl::flat_hash_map<std::string, std::vector<std::string>> map;
  map["a"] = absl::StrSplit("b,c", ',');
  EXPECT_THAT(map["a"], testing::ElementsAre("b", "c"));
  EXPECT_EQ(absl::StrFormat("%d %s", 1, "x"), "1 x");
  EXPECT_EQ(absl::FormatDuration(absl::Seconds(90)), "1m30s");
  absl::Status status = absl::InternalError("x");
  status.SetPayload("url", absl::Cord("payload"));
  EXPECT_EQ(status.GetPayload("url").value(), "payload");
  absl::BitGen random;
  EXPECT_LT(absl::Uniform(random, 0, 10), 10);
}

TEST(SystemTest, Protobuf) {
  google::protobuf::Duration duration;
  ASSERT_TRUE(
      google::protobuf::TextFormat::ParseFromString("seconds: 5", &duration));
  EXPECT_EQ(duration.seconds(), 5);
}

TEST(SystemTest, OneDnn) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  EXPECT_EQ(engine.get_kind(), dnnl::engine::kind::cpu);
}

TEST(SystemTest, Gloo) {
  gloo::rendezvous::HashStore store;
  store.set("key", {'v'});
  EXPECT_EQ(store.get("key"), std::vector<char>{'v'});
  const gloo::rendezvous::Context context(0, 1);
  EXPECT_EQ(context.size, 1);
}

TEST(SystemTest, Highway) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> tag;
  auto lanes = hwy::AllocateAligned<float>(hn::Lanes(tag));
  hn::Store(hn::Add(hn::Set(tag, 1.0f), hn::Set(tag, 2.0f)), tag, lanes.get());
  EXPECT_EQ(lanes[0], 3.0f);
}

TEST(SystemTest, Json) {
  EXPECT_EQ(nlohmann::json::parse(R"({"a": [1, 2]})")["a"][1], 2);
}

TEST(SystemTest, Benchmark) {
  benchmark::RegisterBenchmark("none", [](benchmark::State&) {});
}

TEST(SystemTest, Zlib) { EXPECT_EQ(crc32(0, nullptr, 0), 0u); }

}  // namespace
