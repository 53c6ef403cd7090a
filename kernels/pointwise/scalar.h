// The functions of pointwise ops on one element, in double precision; for
// reference kernels. A slope is the derivative.
#ifndef KERNELS_POINTWISE_SCALAR_H_
#define KERNELS_POINTWISE_SCALAR_H_

#include <cmath>
#include <numbers>

namespace shardgraph::scalar {

inline const double kSqrt2OverPi = std::sqrt(2 / std::numbers::pi);
inline constexpr double kCubic = 0.044715;

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double Silu(double x) { return x * Sigmoid(x); }
inline double SiluSlope(double x) {
  const double s = Sigmoid(x);
  return s + x * s * (1 - s);
}

inline double GeluTanh(double x) {
  return x / 2 * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
}
inline double GeluTanhSlope(double x) {
  const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
  return (1 + t) / 2 +
         x / 2 * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
}
inline double GeluErf(double x) {
  return x / 2 * std::erfc(-x / std::sqrt(2.0));
}
inline double GeluErfSlope(double x) {
  return std::erfc(-x / std::sqrt(2.0)) / 2 +
         x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}

inline double Relu(double x) { return x < 0 ? 0 : x; }

}  // namespace shardgraph::scalar

#endif  // KERNELS_POINTWISE_SCALAR_H_
