// ByteTrigram: a model of bytes that predicts each from the two before it; the
// baseline that a trained network must beat.
#ifndef TOOLS_BENCH_TRIGRAM_H_
#define TOOLS_BENCH_TRIGRAM_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace shardgraph {

// Interpolated Witten-Bell smoothing: with n(h) occurrences of the history h,
// n(h, c) of h followed by c, and t(h) different bytes seen behind h,
//
//   p(c | h) = (n(h, c) + t(h) p(c | h without its oldest byte)) /
//              (n(h) + t(h)),
//
// the shorter history alone where h was never seen, and at the end
// p(c) = (n(c) + 1) / (n + 256). Source: Witten, Bell, "The zero-frequency
// problem", 1991; Chen, Goodman, "An empirical study of smoothing techniques
// for language modeling", 1998, section 2.5.
class ByteTrigram {
 public:
  // The longest history: a trigram model.
  static constexpr int kMaxHistory = 2;

  // Counts of `tokens`, each a byte (0 to 255). 64 MB of counts.
  explicit ByteTrigram(absl::Span<const int32_t> tokens);

  // Mean of -log p over `tokens`, not empty, each predicted from up to
  // `history` tokens before it: 0 unigram, 1 bigram, 2 trigram.
  double NatsPerByte(absl::Span<const int32_t> tokens, int history) const;

  // p(next | history), the newest byte last; at most kMaxHistory bytes.
  double Probability(absl::Span<const int32_t> history, int32_t next) const;

 private:
  static constexpr int kBytes = 256;

  // Of the histories of one length; index: the history in base 256, newest
  // byte last.
  struct Counts {
    std::vector<uint32_t> pairs;  // n(h, c) at h * 256 + c
    std::vector<uint32_t> total;  // n(h)
    std::vector<uint32_t> types;  // t(h)
  };

  std::array<Counts, kMaxHistory + 1> counts_;  // by length of history
};

}  // namespace shardgraph

#endif  // TOOLS_BENCH_TRIGRAM_H_
