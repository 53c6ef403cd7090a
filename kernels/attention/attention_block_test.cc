#include "kernels/attention/attention_block.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/tensor.h"
#include "kernels/testing/conformance.h"

namespace shardgraph {

namespace amx_double {  // BF16 heads only
AttentionForwardFunction AttentionForward;
AttentionGradientFunction AttentionGradient;
}  // namespace amx_double
namespace avx512_bf16_double {  // on code that runs everywhere, like the next
AttentionForwardFunction AttentionForward;
AttentionGradientFunction AttentionGradient;
}  // namespace avx512_bf16_double
namespace avx512_double {
AttentionForwardFunction AttentionForward;
AttentionGradientFunction AttentionGradient;
}  // namespace avx512_double

namespace {

// Leaves NaN where the next call's local variables will be.
__attribute__((noinline)) void SoilStack() {
  volatile unsigned char bytes[7 << 18];
  for (volatile unsigned char& byte : bytes) byte = 0xff;
}

struct BlockCase {
  int64_t queries, keys, width;
  bool causal = true;      // the last query sees all keys
  bool documents = false;  // of 37 tokens each
  bool rotary = false;

  std::string Name() const {
    return absl::StrCat(queries, " queries, ", keys, " keys, width ", width,
                        causal ? ", causal" : "",
                        documents ? ", documents" : "",
                        rotary ? ", rotary" : "");
  }
};

// More than what one task has, and odd sizes.
constexpr BlockCase kBlockCases[] = {
    {1, 1, 3},
    {31, 31, 70},
    {97, 97, 32},
    {388, 388, 64},
    {130, 130, 255},
    {100, 420, 33},
    {120, 90, 48, /*causal=*/false},
    {200, 200, 16, /*causal=*/true, /*documents=*/true},
    {388, 388, 70, /*causal=*/true, /*documents=*/false, /*rotary=*/true},
    {97, 97, 256, /*causal=*/false, /*documents=*/false, /*rotary=*/true},
};

// out, lse, dq, dk and dv of two heads that share a key head; elements are T.
template <typename T>
std::vector<std::vector<float>> RunBlocks(const BlockCase& c,
                                          AttentionForwardFunction* forward,
                                          AttentionGradientFunction* gradient) {
  const int64_t width = c.width;
  const auto draw = [&](int64_t length, uint64_t seed) {
    // Numbers of few bits, so that BF16 holds them.
    std::vector<T> values;
    for (const double value : UniformValues(length * width, -2, 2, seed))
      values.push_back(T(static_cast<float>(BFloat16(value))));
    return values;
  };
  std::vector<T> k = draw(c.keys, 1), v = draw(c.keys, 2);
  std::vector<T> dk(c.keys * width), dv(c.keys * width);
  std::vector<std::vector<T>> q = {draw(c.queries, 3), draw(c.queries, 4)};
  std::vector<std::vector<T>> dout = {draw(c.queries, 5), draw(c.queries, 6)};
  std::vector<std::vector<T>> out(2, std::vector<T>(c.queries * width));
  std::vector<std::vector<T>> dq = out;
  std::vector<std::vector<float>> sums(2,
                                       std::vector<float>(c.queries * width));
  std::vector<std::vector<float>> lse(2, std::vector<float>(c.queries));
  std::vector<std::vector<float>> deltas = lse;
  std::vector<int32_t> documents(c.keys);
  for (int64_t j = 0; j < c.keys; ++j) documents[j] = j / 37;
  std::vector<float> rotary;  // cosines, then sines, of each row
  for (int64_t t = 0; t < c.queries; ++t) {
    for (int64_t d = 0; d < width; ++d) {
      const float angle = 0.1f * t / (1 + d % (width / 2 + 1));
      rotary.push_back(2 * d < width ? std::cos(angle) : std::sin(angle));
    }
  }
  std::vector<AttentionHead> heads(2);
  for (int h = 0; h < 2; ++h) {
    AttentionHead& head = heads[h];
    head.bf16 = sizeof(T) == sizeof(BFloat16);
    head.queries = c.queries;
    head.keys = c.keys;
    head.offset = c.keys - c.queries;
    head.width = width;
    head.scale = 0.3f;
    head.causal = c.causal;
    if (c.documents) head.documents = documents.data();
    if (c.rotary) head.rotary = rotary.data();
    head.q = {q[h].data(), width};
    head.k = {k.data(), width};
    head.v = {v.data(), width};
    head.out = {out[h].data(), width};
    head.lse = lse[h].data();
    head.dout = {dout[h].data(), width};
    head.dq = {dq[h].data(), width};
    head.dk = {dk.data(), width};
    head.dv = {dv.data(), width};
    head.dq_sums = sums[h].data();
    head.deltas = deltas[h].data();
    for (int64_t i = 0; i < c.queries; i += kAttentionQueries) {
      SoilStack();
      forward(head, i);
    }
  }
  SoilStack();
  gradient(heads.data(), heads.size());
  std::vector<std::vector<float>> results = {lse[0], lse[1]};
  for (const std::vector<T>* values :
       {&out[0], &out[1], &dq[0], &dq[1], &dk, &dv})
    results.emplace_back(values->begin(), values->end());
  return results;
}

// Checks that two runs differ by `share` of a result's largest element at most.
void CheckSame(const std::vector<std::vector<float>>& a,
               const std::vector<std::vector<float>>& b, float share) {
  for (size_t r = 0; r < a.size(); ++r) {
    float largest = 1;
    for (const float value : a[r]) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < a[r].size(); ++i)
      ASSERT_NEAR(a[r][i], b[r][i], share * largest)
          << "result " << r << " element " << i;
  }
}

// Panels as wide as AVX-512's; the other widths are in the cases above.
TEST(AttentionBlock, WidePanelsGiveTheSame) {
  for (const BlockCase& c : kBlockCases) {
    SCOPED_TRACE(c.Name());
    CheckSame(RunBlocks<float>(c, baseline::AttentionForward,
                               baseline::AttentionGradient),
              RunBlocks<float>(c, avx512_double::AttentionForward,
                               avx512_double::AttentionGradient),
              1e-6);
  }
}

// Products of BF16, which round probabilities and ds to BF16.
TEST(AttentionBlock, Bf16ProductsGiveTheSame) {
  struct Kernels {
    const char* name;
    AttentionForwardFunction* forward;
    AttentionGradientFunction* gradient;
  };
  const Kernels doubles[] = {
      {"AVX-512 BF16", avx512_bf16_double::AttentionForward,
       avx512_bf16_double::AttentionGradient},
      {"AMX", amx_double::AttentionForward, amx_double::AttentionGradient},
  };
  for (const BlockCase& c : kBlockCases) {
    const auto expected = RunBlocks<BFloat16>(c, baseline::AttentionForward,
                                              baseline::AttentionGradient);
    for (const Kernels& kernels : doubles) {
      SCOPED_TRACE(absl::StrCat(kernels.name, ", ", c.Name()));
      CheckSame(expected,
                RunBlocks<BFloat16>(c, kernels.forward, kernels.gradient),
                1e-2);
    }
  }
}

}  // namespace
}  // namespace shardgraph
