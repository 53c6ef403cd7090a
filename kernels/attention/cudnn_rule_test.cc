// What is left to the own kernels, and how the rest is cut into calls.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/attention/cudnn.h"

namespace shardgraph {
namespace {

using ::testing::HasSubstr;

// Types and attributes of a BF16 instance with contiguous tensors.
struct Instance {
  Instance(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads,
           int64_t width)
      : q(DType::kBF16, {batch, length, heads, width}),
        k(DType::kBF16, {batch, length, kv_heads, width}),
        lse(DType::kF32, {batch, heads, length}) {
    attributes.SetInt("causal", 1);
  }
  std::vector<TensorType> Operands(bool gradient) const {
    if (gradient) return {q, q, k, k, q, lse};
    return {q, k, k};
  }
  std::vector<TensorType> Results(bool gradient) const {
    if (gradient) return {q, k, k};
    return {q, lse};
  }
  absl::Status Supports(bool gradient) const {
    return CudnnSupports(attributes, Operands(gradient), Results(gradient));
  }
  CudnnCalls Calls() const {
    return CudnnCallsOf(AttentionConfig(attributes, q, k), true);
  }

  Attributes attributes;
  TensorType q, k, lse;
};

TEST(AttentionCudnn, RuleSaysWhatIsForTheOwnKernels) {
  const auto refused = [](const Instance& instance, bool gradient) {
    return std::string(instance.Supports(gradient).message());
  };
  const Instance good(2, 48, 4, 2, 64);
  EXPECT_EQ(refused(good, false), "");
  EXPECT_EQ(refused(good, true), "");
  EXPECT_THAT(refused(Instance(2, 48, 4, 2, 68), false), HasSubstr("width 68"));
  EXPECT_THAT(refused(Instance(2, 48, 4, 2, 136), true), HasSubstr("136"));
  EXPECT_THAT(refused(Instance(2, 0, 4, 2, 64), false),
              HasSubstr("no elements"));
  Instance bad = good;
  bad.attributes.SetDouble("dropout", 0.1);
  EXPECT_THAT(refused(bad, false), HasSubstr("dropout"));
  bad = good;
  bad.attributes.SetInt("has_documents", 1);
  EXPECT_THAT(refused(bad, true), HasSubstr("documents"));
  bad = good;
  bad.attributes.SetInt("has_offset", 1);
  EXPECT_THAT(refused(bad, false), HasSubstr("offset"));
  bad = good;
  bad.k = TensorType(DType::kBF16, {2, 40, 2, 64});
  EXPECT_THAT(refused(bad, false), HasSubstr("48 queries over 40 keys"));
  bad = good;
  bad.q.strides[1] += 4;
  EXPECT_THAT(refused(bad, false), HasSubstr("multiples of 8"));
  bad = good;
  bad.q.dtype = bad.k.dtype = DType::kF32;
  EXPECT_THAT(refused(bad, false), HasSubstr("F32"));
  // 16 GiB of scores in one group of heads.
  bad = Instance(1, 32768, 8, 1, 64);
  EXPECT_EQ(refused(bad, false), "");
  EXPECT_THAT(refused(bad, true), HasSubstr("17179869184 bytes of scores"));
  bad.attributes.SetInt("fast", 1);
  EXPECT_EQ(refused(bad, true), "");
}

TEST(AttentionCudnn, ADeterministicGradientIsCutIntoCalls) {
  // 24 MiB of scores a sequence.
  CudnnCalls calls = Instance(8, 1024, 12, 12, 64).Calls();
  EXPECT_EQ(calls.sequences, 8);
  EXPECT_EQ(calls.kv_heads, 12);
  EXPECT_EQ(calls.dq_sums, calls.library);
  EXPECT_GE(calls.bytes, 8 * 12 * (4 * 1024 + 2 * 1024 * 1024));
  // 42 of them fit into a GiB, 32 divide 64.
  EXPECT_EQ(Instance(64, 1024, 12, 12, 64).Calls().sequences, 32);
  // 512 MiB in each group of four heads.
  Instance wide(2, 8192, 32, 8, 128);
  calls = wide.Calls();
  EXPECT_EQ(calls.sequences, 1);
  EXPECT_EQ(calls.kv_heads, 2);
  EXPECT_LE(calls.library_bytes, int64_t{5} << 28);
  EXPECT_EQ(AttentionGradientCudaWorkspace(wide.attributes, wide.Operands(true),
                                           wide.Results(true)),
            calls.bytes);
  // Sums instead of scores.
  wide.attributes.SetInt("fast", 1);
  calls = wide.Calls();
  EXPECT_EQ(calls.sequences, 2);
  EXPECT_EQ(calls.kv_heads, 8);
  EXPECT_EQ(calls.library - calls.dq_sums, wide.q.num_elements() * 4);
}

}  // namespace
}  // namespace shardgraph
