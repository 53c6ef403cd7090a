#include "kernels/cpu/vector_probe.h"

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

template <Vector (*kFunction)(Vector), typename From = float,
          typename To = float>
void Apply(const From* x, int64_t n, To* y) {
  ForVectors(
      n, [=](int64_t i) { StoreVector(kFunction(LoadVector(x + i)), y + i); },
      [=](int64_t i, int64_t count) {
        StorePart(kFunction(LoadPart(x + i, count)), count, y + i);
      });
}

Vector Same(Vector x) { return x; }
Vector ExpOf(Vector x) { return Exp(x); }
Vector SigmoidOf(Vector x) { return Sigmoid(x); }
Vector NormalOf(Vector x) { return Normal(x); }
Vector SquareRootOf(Vector x) { return SquareRoot(x); }

float SumOf(const float* x, int64_t n) {
  LaneSum sum;
  ForLanes(n, [&](int64_t, int part, auto load) { sum.part[part] += load(x); });
  return Total(sum);
}

}  // namespace

VectorProbe Probe() {
  return {Apply<ExpOf>,
          Apply<SigmoidOf>,
          Apply<NormalOf>,
          Apply<SquareRootOf>,
          Apply<Same, float, uint16_t>,
          Apply<Same, uint16_t, float>,
          SumOf};
}

}  // namespace shardgraph::SG_CPU_TARGET
