#include <vector>

#include "kernels/embedding/embedding.h"
#include "kernels/embedding/rotary_reference.h"
#include "kernels/reference/reference_kernel.h"

namespace shardgraph {
namespace {

void Embedding(const ReferenceCall& call) {
  const Elements& ids = call.operand(0);
  const Elements& weight = call.operand(1);
  for (int64_t n = 0; n < ids.dim(0); ++n) {
    const int64_t id = static_cast<int64_t>(ids.Get(n));
    SG_CHECK(id >= 0 && id < weight.dim(0))
        << "embedding: id " << id << " at position " << n
        << " is outside the table of " << weight.dim(0) << " rows";
    for (int64_t c = 0; c < weight.dim(1); ++c)
      call.result(0).Set(weight.Get(id, c), n, c);
  }
}

void EmbeddingGradient(const ReferenceCall& call) {
  const Elements& ids = call.operand(0);
  const Elements& dy = call.operand(1);
  const int64_t rows = call.attributes().Int("rows");
  const int64_t columns = dy.dim(1);
  std::vector<double> sums(rows * columns);
  for (int64_t n = 0; n < ids.dim(0); ++n) {
    const int64_t id = static_cast<int64_t>(ids.Get(n));
    if (id < 0 || id >= rows) continue;
    for (int64_t c = 0; c < columns; ++c)
      sums[id * columns + c] += dy.Get(n, c);
  }
  for (int64_t i = 0; i < rows * columns; ++i) call.Store(0, i, sums[i]);
}

void Positions(const ReferenceCall& call) {
  const int64_t length = call.attributes().Int("length");
  for (int64_t i = 0; i < call.result(0).size(); ++i)
    call.Store(0, i, call.operand(0).Get() + i % length);
}

void Rotary(const ReferenceCall& call) {
  const Elements& x = call.operand(0);
  const std::vector<float> frequencies =
      RotaryFrequencies(call.attributes(), x.dim(3));
  const bool inverse = call.attributes().Int("inverse") != 0;
  std::vector<double> head(x.dim(3));
  for (int64_t b = 0; b < x.dim(0); ++b) {
    for (int64_t t = 0; t < x.dim(1); ++t) {
      const float position =
          static_cast<float>(call.operand(1).Get(b * x.dim(1) + t));
      for (int64_t h = 0; h < x.dim(2); ++h) {
        for (size_t d = 0; d < head.size(); ++d) head[d] = x.Get(b, t, h, d);
        RotateHead(x.dtype(), frequencies, position, inverse, head.data());
        for (size_t d = 0; d < head.size(); ++d)
          call.result(0).Set(head[d], b, t, h, d);
      }
    }
  }
}

}  // namespace

absl::Span<const KernelDef> EmbeddingReferenceKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "embedding", .prepare = PrepareReference<Embedding>},
      {.op = "embedding_gradient",
       .prepare = PrepareReference<EmbeddingGradient>},
      {.op = "positions", .prepare = PrepareReference<Positions>},
      {.op = "rotary", .prepare = PrepareReference<Rotary>},
  };
  return kernels;
}

}  // namespace shardgraph
