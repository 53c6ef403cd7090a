#include <cmath>
#include <memory>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/pointwise/pointwise.h"

namespace shardgraph {
namespace {

constexpr float kSqrt2OverPi = 0.79788456080286536f;
constexpr float kCubic = 0.044715f;

// Accurate on both sides: nothing cancels.
float Sigmoid(float x) { return 1.0f / (1.0f + VectorExp(-x)); }

// Functions of one element; slope(x) is the derivative.

// 1/2 (1 + tanh(u)) = sigmoid(2 u), which loses nothing where tanh is near -1.
float GeluTanhGate(float x) {
  return Sigmoid(2 * kSqrt2OverPi * (x + kCubic * x * x * x));
}
struct GeluTanh {
  static float Value(float x) { return x * GeluTanhGate(x); }
  static float Slope(float x) {
    const float s = GeluTanhGate(x);
    return s + x * s * (1 - s) * 2 * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
  }
};

struct GeluErf {
  static float Value(float x) {
    return x * 0.5f * std::erfc(x * -0.70710678118654752f);
  }
  static float Slope(float x) {
    return 0.5f * std::erfc(x * -0.70710678118654752f) +
           x * VectorExp(-0.5f * x * x) * 0.39894228040143268f;
  }
};

struct Silu {
  static float Value(float x) { return x * Sigmoid(x); }
  static float Slope(float x) {
    const float s = Sigmoid(x);
    return s + x * s * (1 - s);
  }
};

struct Relu {
  static float Value(float x) { return x < 0 ? 0 : x; }
};

using Prepared = std::unique_ptr<PreparedKernel>;

template <typename F>
absl::StatusOr<Prepared> PrepareUnary(const KernelContext& context) {
  const Tensor x = context.operands[0], y = context.results[0];
  return DispatchActivation(
      x.type.dtype, [&]<typename T>(std::type_identity<T>) -> Prepared {
        const ElementwiseLoop<2> loop({&x.type, &y.type});
        return MakeKernel([loop, x = x.as<T>(), y = y.as<T>()](Lane& lane) {
          loop.Run(*lane.pool, [&](const auto& offset, int64_t count) {
            const T* from = x + offset[0];
            T* to = y + offset[1];
            for (int64_t i = 0; i < count; ++i) to[i] = T(F::Value(from[i]));
          });
        });
      });
}

// result = f(a, b), all alike.
template <typename F>
absl::StatusOr<Prepared> PrepareBinary(const KernelContext& context, F f) {
  const Tensor a = context.operands[0], b = context.operands[1];
  const Tensor y = context.results[0];
  return DispatchActivation(
      a.type.dtype, [&]<typename T>(std::type_identity<T>) -> Prepared {
        const ElementwiseLoop<3> loop({&a.type, &b.type, &y.type});
        return MakeKernel(
            [loop, f, a = a.as<T>(), b = b.as<T>(), y = y.as<T>()](Lane& lane) {
              loop.Run(*lane.pool, [&](const auto& offset, int64_t count) {
                const T* from_a = a + offset[0];
                const T* from_b = b + offset[1];
                T* to = y + offset[2];
                for (int64_t i = 0; i < count; ++i)
                  to[i] = T(f(static_cast<float>(from_a[i]),
                              static_cast<float>(from_b[i])));
              });
            });
      });
}

template <typename F>
absl::StatusOr<Prepared> PrepareUnaryGradient(const KernelContext& context) {
  return PrepareBinary(context,
                       [](float dy, float x) { return dy * F::Slope(x); });
}

absl::StatusOr<Prepared> PrepareReluGradient(const KernelContext& context) {
  return PrepareBinary(context,
                       [](float dy, float x) { return x > 0 ? dy : 0.0f; });
}

absl::StatusOr<Prepared> PrepareGelu(const KernelContext& context) {
  return context.attributes->Int("tanh") != 0 ? PrepareUnary<GeluTanh>(context)
                                              : PrepareUnary<GeluErf>(context);
}

absl::StatusOr<Prepared> PrepareGeluGradient(const KernelContext& context) {
  return context.attributes->Int("tanh") != 0
             ? PrepareUnaryGradient<GeluTanh>(context)
             : PrepareUnaryGradient<GeluErf>(context);
}

absl::StatusOr<Prepared> PrepareAdd(const KernelContext& context) {
  return PrepareBinary(context, [](float a, float b) { return a + b; });
}

absl::StatusOr<Prepared> PrepareSwiglu(const KernelContext& context) {
  const Tensor gate = context.operands[0], up = context.operands[1];
  const Tensor y = context.results[0];
  return DispatchActivation(
      y.type.dtype, [&]<typename T>(std::type_identity<T>) -> Prepared {
        const ElementwiseLoop<3> loop({&gate.type, &up.type, &y.type});
        return MakeKernel([loop, gate = gate.as<T>(), up = up.as<T>(),
                           y = y.as<T>()](Lane& lane) {
          loop.Run(*lane.pool, [&](const auto& offset, int64_t count) {
            const T* g = gate + offset[0];
            const T* u = up + offset[1];
            T* to = y + offset[2];
            for (int64_t i = 0; i < count; ++i) {
              const T s(Silu::Value(g[i]));
              to[i] = T(static_cast<float>(s) * static_cast<float>(u[i]));
            }
          });
        });
      });
}

absl::StatusOr<Prepared> PrepareSwigluGradient(const KernelContext& context) {
  const Tensor dy = context.operands[0], gate = context.operands[1],
               up = context.operands[2];
  const Tensor dgate = context.results[0], dup = context.results[1];
  return DispatchActivation(
      dy.type.dtype, [&]<typename T>(std::type_identity<T>) -> Prepared {
        const ElementwiseLoop<5> loop(
            {&dy.type, &gate.type, &up.type, &dgate.type, &dup.type});
        return MakeKernel([loop, dy = dy.as<T>(), gate = gate.as<T>(),
                           up = up.as<T>(), dgate = dgate.as<T>(),
                           dup = dup.as<T>()](Lane& lane) {
          loop.Run(*lane.pool, [&](const auto& offset, int64_t count) {
            const T* d = dy + offset[0];
            const T* g = gate + offset[1];
            const T* u = up + offset[2];
            T* to_gate = dgate + offset[3];
            T* to_up = dup + offset[4];
            for (int64_t i = 0; i < count; ++i) {
              const float x = g[i], y = d[i];
              const T s(Silu::Value(x));
              to_gate[i] = T(y * static_cast<float>(u[i]) * Silu::Slope(x));
              to_up[i] = T(y * static_cast<float>(s));
            }
          });
        });
      });
}

absl::StatusOr<Prepared> PrepareCast(const KernelContext& context) {
  const Tensor x = context.operands[0], y = context.results[0];
  const bool accumulate = context.attributes->Int("accumulate") != 0;
  const ElementwiseLoop<2> loop({&x.type, &y.type});
  return DispatchActivation(
      x.type.dtype, [&]<typename From>(std::type_identity<From>) -> Prepared {
        return DispatchActivation(
            y.type.dtype, [&]<typename To>(std::type_identity<To>) -> Prepared {
              return MakeKernel([loop, accumulate, x = x.as<From>(),
                                 y = y.as<To>()](Lane& lane) {
                loop.Run(*lane.pool, [&](const auto& offset, int64_t count) {
                  const From* from = x + offset[0];
                  To* to = y + offset[1];
                  if (accumulate) {
                    for (int64_t i = 0; i < count; ++i)
                      to[i] = To(static_cast<float>(to[i]) +
                                 static_cast<float>(from[i]));
                  } else if constexpr (std::is_same_v<From, To>) {
                    std::copy(from, from + count, to);
                  } else {
                    for (int64_t i = 0; i < count; ++i)
                      to[i] = To(static_cast<float>(from[i]));
                  }
                });
              });
            });
      });
}

absl::StatusOr<Prepared> PrepareScale(const KernelContext& context) {
  const Tensor x = context.operands[0], y = context.results[0];
  return DispatchActivation(
      x.type.dtype, [&]<typename T>(std::type_identity<T>) -> Prepared {
        const ElementwiseLoop<2> loop({&x.type, &y.type});
        return MakeKernel(
            [loop, x = x.as<T>(), y = y.as<T>(),
             factor = context.operands[1].as<float>()](Lane& lane) {
              loop.Run(*lane.pool,
                       [&, f = *factor](const auto& offset, int64_t count) {
                         const T* from = x + offset[0];
                         T* to = y + offset[1];
                         for (int64_t i = 0; i < count; ++i)
                           to[i] = T(static_cast<float>(from[i]) * f);
                       });
            });
      });
}

}  // namespace

absl::Span<const KernelDef> PointwiseCpuKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "add", .supports = SupportsNoF64, .prepare = PrepareAdd},
      {.op = "gelu", .supports = SupportsNoF64, .prepare = PrepareGelu},
      {.op = "gelu_gradient",
       .supports = SupportsNoF64,
       .prepare = PrepareGeluGradient},
      {.op = "silu", .supports = SupportsNoF64, .prepare = PrepareUnary<Silu>},
      {.op = "silu_gradient",
       .supports = SupportsNoF64,
       .prepare = PrepareUnaryGradient<Silu>},
      {.op = "relu", .supports = SupportsNoF64, .prepare = PrepareUnary<Relu>},
      {.op = "relu_gradient",
       .supports = SupportsNoF64,
       .prepare = PrepareReluGradient},
      {.op = "swiglu", .supports = SupportsNoF64, .prepare = PrepareSwiglu},
      {.op = "swiglu_gradient",
       .supports = SupportsNoF64,
       .prepare = PrepareSwigluGradient},
      {.op = "cast", .supports = SupportsNoF64, .prepare = PrepareCast},
      {.op = "scale", .supports = SupportsNoF64, .prepare = PrepareScale},
  };
  return kernels;
}

}  // namespace shardgraph
