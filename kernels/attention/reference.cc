#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/rotary_reference.h"
#include "kernels/random/random.h"
#include "kernels/reference/access.h"
#include "kernels/reference/reference_kernel.h"

namespace shardgraph {
namespace {

// Rounds where backends may (kernels/attention/attention.h).

// Numbers [B, T, H, D] of q or k, turned by their positions if there are any.
class Heads {
 public:
  Heads(const Elements& x, const Attributes& attributes,
        const Elements* positions)
      : x_(x) {
    for (int64_t b = 0; b < x.dim(0); ++b) {
      for (int64_t t = 0; t < x.dim(1); ++t) {
        for (int64_t h = 0; h < x.dim(2); ++h) {
          for (int64_t d = 0; d < x.dim(3); ++d)
            values_.push_back(x.Get(b, t, h, d));
        }
      }
    }
    if (positions == nullptr) return;
    Turn(attributes, *positions, /*inverse=*/false, x.dtype(), x.dim(2),
         x.dim(3), &values_);
  }

  double Get(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return values_[((b * x_.dim(1) + t) * x_.dim(2) + h) * x_.dim(3) + d];
  }

  // values [B * T, heads, width], rounded to dtype, are turned or turned back.
  static void Turn(const Attributes& attributes, const Elements& positions,
                   bool inverse, DType dtype, int64_t heads, int64_t width,
                   std::vector<double>* values) {
    const std::vector<float> frequencies = RotaryFrequencies(attributes, width);
    for (int64_t row = 0; row < positions.size(); ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        RotateHead(dtype, frequencies, static_cast<float>(positions.Get(row)),
                   inverse, values->data() + (row * heads + h) * width);
      }
    }
  }

 private:
  const Elements& x_;
  std::vector<double> values_;
};

// The probabilities of one query, and which keys they are for.
class Scores {
 public:
  // q is operand `first`; the optional operands start at `next`.
  Scores(const ReferenceCall& call, int first, int next)
      : config(call.attributes(), call.operand(first).type(),
               call.operand(first + 1).type()),
        positions(config.has_rotary ? &call.operand(next++) : nullptr),
        q(call.operand(first), call.attributes(), positions),
        k(call.operand(first + 1), call.attributes(), positions) {
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
      sum += q.Get(b, i, h, d) * k.Get(b, j, h / config.heads_per_group(), d);
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
  const Elements* const positions;  // null without has_rotary
  const Heads q, k;

 private:
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
  const DType dtype = call.operand(1).dtype();
  const Elements& v = call.operand(3);
  const Elements& out = call.operand(4);
  const Elements& lse = call.operand(5);
  const int64_t width = config.width;
  const int64_t heads = config.heads, kv_heads = config.kv_heads;
  std::vector<double> dq(config.batch * config.queries * heads * width);
  std::vector<double> dk(config.batch * config.keys * kv_heads * width);
  std::vector<double> dv(dk.size());
  for (int64_t b = 0; b < config.batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / config.heads_per_group();
      for (int64_t i = 0; i < config.queries; ++i) {
        double delta = 0;
        for (int64_t d = 0; d < width; ++d)
          delta += dout.Get(b, i, h, d) * out.Get(b, i, h, d);
        double* const dq_row =
            dq.data() + ((b * config.queries + i) * heads + h) * width;
        for (int64_t j = 0; j < config.keys; ++j) {
          if (!scores.Visible(b, i, j)) continue;
          const double p =
              std::exp(scores.Score(b, h, i, j) - lse.Get(b, h, i));
          const double kept = scores.Kept(b, h, i, j);
          double dp = 0;
          for (int64_t d = 0; d < width; ++d)
            dp += dout.Get(b, i, h, d) * v.Get(b, j, g, d);
          const double ds =
              RoundTo(dtype, p * (kept * dp - delta)) * config.scale;
          const double p_kept = RoundTo(dtype, kept * p);
          const int64_t key_row =
              ((b * config.keys + j) * kv_heads + g) * width;
          for (int64_t d = 0; d < width; ++d) {
            dq_row[d] += ds * scores.k.Get(b, j, g, d);
            dk[key_row + d] += ds * scores.q.Get(b, i, h, d);
            dv[key_row + d] += p_kept * dout.Get(b, i, h, d);
          }
        }
      }
    }
  }
  const auto turn_back = [&](int64_t count, std::vector<double>* values) {
    if (scores.positions == nullptr) return;
    for (double& value : *values) value = RoundTo(dtype, value);
    Heads::Turn(call.attributes(), *scores.positions, /*inverse=*/true, dtype,
                count, width, values);
  };
  turn_back(heads, &dq);
  turn_back(kv_heads, &dk);
  int r = 0;
  for (const std::vector<double>* values : {&dq, &dk, &dv}) {
    for (size_t i = 0; i < values->size(); ++i)
      call.result(r).SetFlat((*values)[i], i);
    ++r;
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
