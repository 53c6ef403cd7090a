#include "tools/bench/trigram.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/check.h"

namespace shardgraph {

ByteTrigram::ByteTrigram(absl::Span<const int32_t> tokens) {
  size_t histories = 1;
  for (size_t length = 0; length < counts_.size(); ++length) {
    Counts& counts = counts_[length];
    counts.pairs.resize(histories * kBytes);
    counts.total.resize(histories);
    counts.types.resize(histories);
    size_t history = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      SG_CHECK(tokens[i] >= 0 && tokens[i] < kBytes) << tokens[i];
      const size_t pair = history * kBytes + tokens[i];
      if (i >= length) {
        if (counts.pairs[pair]++ == 0) ++counts.types[history];
        ++counts.total[history];
      }
      history = pair % histories;
    }
    histories *= kBytes;
  }
}

double ByteTrigram::Probability(absl::Span<const int32_t> history,
                                int32_t next) const {
  SG_CHECK(history.size() <= kMaxHistory) << history.size();
  double p = (counts_[0].pairs[next] + 1.0) / (counts_[0].total[0] + kBytes);
  size_t index = 0, digit = 1;
  for (size_t length = 1; length <= history.size(); ++length) {
    index += history[history.size() - length] * digit;
    digit *= kBytes;
    const Counts& counts = counts_[length];
    if (counts.total[index] == 0) break;  // nor was any longer one seen
    const double types = counts.types[index];
    p = (counts.pairs[index * kBytes + next] + types * p) /
        (counts.total[index] + types);
  }
  return p;
}

double ByteTrigram::NatsPerByte(absl::Span<const int32_t> tokens,
                                int history) const {
  double nats = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t length = std::min<size_t>(i, history);
    nats -=
        std::log(Probability(tokens.subspan(i - length, length), tokens[i]));
  }
  return nats / tokens.size();
}

}  // namespace shardgraph
