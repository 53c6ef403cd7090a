#include "kernels/pointwise/pointwise_run.h"

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

constexpr float kSqrt2OverPi = 0.79788456080286536f;
constexpr float kCubic = 0.044715f;

// Functions of one element each; Slope(x) is the derivative.

// 1/2 (1 + tanh(u)) = sigmoid(2 u), which loses nothing where tanh is near -1.
SG_VECTOR_INLINE Vector GeluTanhGate(Vector x) {
  return Sigmoid(x * (2 * kSqrt2OverPi * kCubic * (x * x) + 2 * kSqrt2OverPi));
}
struct GeluTanh {
  SG_VECTOR_INLINE Vector Value(Vector x) { return x * GeluTanhGate(x); }
  SG_VECTOR_INLINE Vector Slope(Vector x) {
    const Vector s = GeluTanhGate(x);
    return s + x * s * (1.0f - s) *
                   (6 * kSqrt2OverPi * kCubic * (x * x) + 2 * kSqrt2OverPi);
  }
};

struct GeluErf {
  SG_VECTOR_INLINE Vector Value(Vector x) { return x * Normal(x); }
  SG_VECTOR_INLINE Vector Slope(Vector x) {
    return Normal(x) + x * Exp(-0.5f * (x * x)) * 0.39894228040143268f;
  }
};

struct Silu {
  SG_VECTOR_INLINE Vector Value(Vector x) { return x * Sigmoid(x); }
  SG_VECTOR_INLINE Vector Slope(Vector x) {
    const Vector s = Sigmoid(x);
    return s + x * s * (1.0f - s);
  }
};

template <typename From, typename To, typename F>
SG_VECTOR_INLINE void Unary(const PointwiseRun& run, F f) {
  const From* x = static_cast<const From*>(run.in[0]);
  To* y = static_cast<To*>(run.out[0]);
  ForVectors(
      run.n, [=](int64_t i) { StoreVector(f(LoadVector(x + i)), y + i); },
      [=](int64_t i, int64_t count) {
        StorePart(f(LoadPart(x + i, count)), count, y + i);
      });
}

template <typename A, typename B, typename To, typename F>
SG_VECTOR_INLINE void Binary(const A* a, const B* b, int64_t n, To* y, F f) {
  ForVectors(
      n,
      [=](int64_t i) {
        StoreVector(f(LoadVector(a + i), LoadVector(b + i)), y + i);
      },
      [=](int64_t i, int64_t count) {
        StorePart(f(LoadPart(a + i, count), LoadPart(b + i, count)), count,
                  y + i);
      });
}

template <typename T, typename F>
SG_VECTOR_INLINE void Binary(const PointwiseRun& run, F f) {
  Binary(static_cast<const T*>(run.in[0]), static_cast<const T*>(run.in[1]),
         run.n, static_cast<T*>(run.out[0]), f);
}

template <typename T, typename F>
SG_VECTOR_INLINE void UnaryGradient(const PointwiseRun& run) {
  Binary<T>(run, [](Vector dy, Vector x) { return dy * F::Slope(x); });
}

template <typename T>
SG_VECTOR_INLINE void SwigluGradient(const PointwiseRun& run) {
  const T* dy = static_cast<const T*>(run.in[0]);
  const T* gate = static_cast<const T*>(run.in[1]);
  const T* up = static_cast<const T*>(run.in[2]);
  T* dgate = static_cast<T*>(run.out[0]);
  T* dup = static_cast<T*>(run.out[1]);
  const auto to_gate = [](Vector d, Vector x, Vector s, Vector u) {
    return d * u * (s + x * s * (1.0f - s));
  };
  const auto to_up = [](Vector d, Vector x, Vector s) {
    return d * RoundedTo<T>(x * s);
  };
  ForVectors(
      run.n,
      [=](int64_t i) {
        const Vector d = LoadVector(dy + i), x = LoadVector(gate + i);
        const Vector s = Sigmoid(x);
        StoreVector(to_gate(d, x, s, LoadVector(up + i)), dgate + i);
        StoreVector(to_up(d, x, s), dup + i);
      },
      [=](int64_t i, int64_t count) {
        const Vector d = LoadPart(dy + i, count), x = LoadPart(gate + i, count);
        const Vector s = Sigmoid(x);
        StorePart(to_gate(d, x, s, LoadPart(up + i, count)), count, dgate + i);
        StorePart(to_up(d, x, s), count, dup + i);
      });
}

template <typename From, typename To>
SG_VECTOR_INLINE void Cast(const PointwiseRun& run) {
  const From* x = static_cast<const From*>(run.in[0]);
  To* y = static_cast<To*>(run.out[0]);
  if (run.function == Pointwise::kCastAdd) {
    Binary(y, x, run.n, y, [](Vector a, Vector b) { return a + b; });
  } else if constexpr (__is_same(From, To)) {
    std::memcpy(y, x, run.n * sizeof(To));
  } else {
    Unary<From, To>(run, [](Vector a) { return a; });
  }
}

template <typename T>
void Run(const PointwiseRun& run) {
  switch (run.function) {
    case Pointwise::kAdd:
      return Binary<T>(run, [](Vector a, Vector b) { return a + b; });
    case Pointwise::kGeluTanh:
      return Unary<T, T>(run, GeluTanh::Value);
    case Pointwise::kGeluErf:
      return Unary<T, T>(run, GeluErf::Value);
    case Pointwise::kSilu:
      return Unary<T, T>(run, Silu::Value);
    case Pointwise::kRelu:
      return Unary<T, T>(run, [](Vector x) { return x < 0.0f ? Vector{} : x; });
    case Pointwise::kGeluTanhGradient:
      return UnaryGradient<T, GeluTanh>(run);
    case Pointwise::kGeluErfGradient:
      return UnaryGradient<T, GeluErf>(run);
    case Pointwise::kSiluGradient:
      return UnaryGradient<T, Silu>(run);
    case Pointwise::kReluGradient:
      return Binary<T>(
          run, [](Vector dy, Vector x) { return x > 0.0f ? dy : Vector{}; });
    case Pointwise::kSwiglu:
      return Binary<T>(run, [](Vector gate, Vector up) {
        return RoundedTo<T>(Silu::Value(gate)) * up;
      });
    case Pointwise::kSwigluGradient:
      return SwigluGradient<T>(run);
    case Pointwise::kScale: {
      const float factor = run.factor;
      return Unary<T, T>(run, [factor](Vector x) { return x * factor; });
    }
    case Pointwise::kCast:
    case Pointwise::kCastAdd:
      switch (run.to_type) {
        case ElementType::kF32:
          return Cast<T, float>(run);
        case ElementType::kBF16:
          return Cast<T, uint16_t>(run);
        case ElementType::kF16:
          if constexpr (kHasFloat16) Cast<T, Float16Bits>(run);
          return;
      }
  }
}

}  // namespace

void RunPointwise(const PointwiseRun& run) {
  switch (run.type) {
    case ElementType::kF32:
      return Run<float>(run);
    case ElementType::kBF16:
      return Run<uint16_t>(run);
    case ElementType::kF16:
      if constexpr (kHasFloat16) Run<Float16Bits>(run);
      return;
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
