#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/random/random.h"
#include "kernels/reference/access.h"
#include "kernels/reference/reference_kernel.h"

namespace shardgraph {
namespace {

// Rounds where backends may (kernels/attention/attention.h).

// The probabilities of one query, and which keys they are for.
class Scores {
 public:
  // q is operand `first`; the optional operands start at `next`.
  Scores(const ReferenceCall& call, int first, int next)
      : config(call.attributes(), call.operand(first).type(),
               call.operand(first + 1).type()),
        q_(call.operand(first)),
        k_(call.operand(first + 1)) {
    if (config.has_offset) offset_ = call.operand(next++).Get();
    if (config.has_documents) documents_ = &call.operand(next++);
    if (config.dropout > 0) {
      sequence_ids_ = &call.operand(next);
      run_step_ = call.operand(next + 1).Get();
    }
  }

  bool Visible(int64_t b, int64_t i, int64_t j) const {
    if (config.causal && j > i + offset_) return false;
    return documents_ == nullptr ||
           documents_->Get(b, j) == documents_->Get(b, i + offset_);
  }

  double Score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < config.width; ++d)
      sum += q_.Get(b, i, h, d) * k_.Get(b, j, h / config.heads_per_group(), d);
    return config.scale * sum;
  }

  // What dropout multiplies a probability with.
  double Kept(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (config.dropout == 0) return 1;
    const RandomKey key =
        MakeRandomKey(config.seed, config.key, run_step_,
                      static_cast<int64_t>(sequence_ids_->Get(b)));
    const bool kept =
        DropoutKeeps(key, (h * config.queries + i) * config.keys + j,
                     DropoutThreshold(config.dropout));
    return kept ? 1 / (1 - config.dropout) : 0;
  }

  const AttentionConfig config;

 private:
  const Elements& q_;
  const Elements& k_;
  int64_t offset_ = 0;
  const Elements* documents_ = nullptr;
  const Elements* sequence_ids_ = nullptr;
  int64_t run_step_ = 0;
};

void Attention(const ReferenceCall& call) {
  const Scores scores(call, 0, 3);
  const AttentionConfig& config = scores.config;
  const Elements& v = call.operand(2);
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> s(config.keys);
  for (int64_t b = 0; b < config.batch; ++b) {
    for (int64_t h = 0; h < config.heads; ++h) {
      for (int64_t i = 0; i < config.queries; ++i) {
        double max = -infinity;
        for (int64_t j = 0; j < config.keys; ++j) {
          s[j] = scores.Visible(b, i, j) ? scores.Score(b, h, i, j) : -infinity;
          max = std::max(max, s[j]);
        }
        double sum = 0;
        std::vector<double> out(config.width);
        for (int64_t j = 0; j < config.keys; ++j) {
          if (s[j] == -infinity) continue;
          const double e = std::exp(s[j] - max);
          sum += e;
          const double kept = RoundTo(v.dtype(), e * scores.Kept(b, h, i, j));
          for (int64_t d = 0; d < config.width; ++d)
            out[d] += kept * v.Get(b, j, h / config.heads_per_group(), d);
        }
        for (int64_t d = 0; d < config.width; ++d)
          call.result(0).Set(sum == 0 ? 0 : out[d] / sum, b, i, h, d);
        call.result(1).Set(sum == 0 ? -infinity : max + std::log(sum), b, h, i);
      }
    }
  }
}

void AttentionGradient(const ReferenceCall& call) {
  const Scores scores(call, 1, 6);
  const AttentionConfig& config = scores.config;
  const Elements& dout = call.operand(0);
  const Elements& q = call.operand(1);
  const Elements& k = call.operand(2);
  const Elements& v = call.operand(3);
  const Elements& out = call.operand(4);
  const Elements& lse = call.operand(5);
  const int64_t width = config.width;
  for (int64_t b = 0; b < config.batch; ++b) {
    for (int64_t g = 0; g < config.kv_heads; ++g) {
      std::vector<double> dk(config.keys * width), dv(config.keys * width);
      for (int64_t h = g * config.heads_per_group();
           h < (g + 1) * config.heads_per_group(); ++h) {
        for (int64_t i = 0; i < config.queries; ++i) {
          double delta = 0;
          for (int64_t d = 0; d < width; ++d)
            delta += dout.Get(b, i, h, d) * out.Get(b, i, h, d);
          std::vector<double> dq(width);
          for (int64_t j = 0; j < config.keys; ++j) {
            if (!scores.Visible(b, i, j)) continue;
            const double p =
                std::exp(scores.Score(b, h, i, j) - lse.Get(b, h, i));
            const double kept = scores.Kept(b, h, i, j);
            double dp = 0;
            for (int64_t d = 0; d < width; ++d)
              dp += dout.Get(b, i, h, d) * v.Get(b, j, g, d);
            const double ds =
                RoundTo(q.dtype(), p * (kept * dp - delta)) * config.scale;
            const double p_kept = RoundTo(q.dtype(), kept * p);
            for (int64_t d = 0; d < width; ++d) {
              dq[d] += ds * k.Get(b, j, g, d);
              dk[j * width + d] += ds * q.Get(b, i, h, d);
              dv[j * width + d] += p_kept * dout.Get(b, i, h, d);
            }
          }
          for (int64_t d = 0; d < width; ++d)
            call.result(0).Set(dq[d], b, i, h, d);
        }
      }
      for (int64_t j = 0; j < config.keys; ++j) {
        for (int64_t d = 0; d < width; ++d) {
          call.result(1).Set(dk[j * width + d], b, j, g, d);
          call.result(2).Set(dv[j * width + d], b, j, g, d);
        }
      }
    }
  }
}

constexpr KernelDef kKernels[] = {
    {.op = "attention", .prepare = PrepareReference<Attention>},
    {.op = "attention_gradient",
     .prepare = PrepareReference<AttentionGradient>},
};

}  // namespace

absl::Span<const KernelDef> AttentionReferenceKernels() { return kKernels; }

}  // namespace shardgraph
