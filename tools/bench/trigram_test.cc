#include "tools/bench/trigram.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using Tokens = std::vector<int32_t>;

TEST(ByteTrigramTest, FollowsTheFormula) {
  // Once each: b after a, a after a, b after aa. b was seen with nothing
  // behind it.
  const ByteTrigram model(Tokens{'a', 'a', 'b'});
  const double a = 3 / 259.0, b = 2 / 259.0, c = 1 / 259.0;
  EXPECT_DOUBLE_EQ(model.Probability({}, 'a'), a);
  EXPECT_DOUBLE_EQ(model.Probability({}, 'b'), b);
  EXPECT_DOUBLE_EQ(model.Probability({}, 'c'), c);
  const double a_a = (1 + 2 * a) / 4, a_b = (1 + 2 * b) / 4, a_c = 2 * c / 4;
  EXPECT_DOUBLE_EQ(model.Probability(Tokens{'a'}, 'a'), a_a);
  EXPECT_DOUBLE_EQ(model.Probability(Tokens{'a'}, 'b'), a_b);
  EXPECT_DOUBLE_EQ(model.Probability(Tokens{'a'}, 'c'), a_c);
  EXPECT_DOUBLE_EQ(model.Probability(Tokens{'b'}, 'c'), c);
  EXPECT_DOUBLE_EQ(model.Probability(Tokens{'a', 'a'}, 'b'), (1 + a_b) / 2);
  EXPECT_DOUBLE_EQ(model.Probability(Tokens{'a', 'a'}, 'c'), a_c / 2);
  EXPECT_DOUBLE_EQ(model.Probability(Tokens{'b', 'a'}, 'c'), a_c);
  EXPECT_DOUBLE_EQ(model.Probability(Tokens{'a', 'b'}, 'a'), a);

  const Tokens text = {'a', 'a', 'c'};
  EXPECT_DOUBLE_EQ(model.NatsPerByte(text, 0),
                   -(2 * std::log(a) + std::log(c)) / 3);
  EXPECT_DOUBLE_EQ(model.NatsPerByte(text, 1),
                   -(std::log(a) + std::log(a_a) + std::log(a_c)) / 3);
  EXPECT_DOUBLE_EQ(model.NatsPerByte(text, 2),
                   -(std::log(a) + std::log(a_a) + std::log(a_c / 2)) / 3);
}

TEST(ByteTrigramTest, ProbabilitiesSumToOne) {
  Tokens text(1000);
  for (size_t i = 0; i < text.size(); ++i) text[i] = i * i % 256;
  const ByteTrigram model(text);
  for (const Tokens& history :
       {Tokens{}, Tokens{0}, Tokens{2}, Tokens{1, 4}, Tokens{4, 1}}) {
    double sum = 0;
    for (int32_t c = 0; c < 256; ++c) sum += model.Probability(history, c);
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(ByteTrigramTest, WithoutTextEveryByteIsAsLikely) {
  const ByteTrigram model({});
  EXPECT_DOUBLE_EQ(model.NatsPerByte(Tokens{1, 255, 0}, 2), std::log(256.0));
}

}  // namespace
}  // namespace shardgraph
