// What a kernel sees when it is compiled as C++ against the CUDA double.
//
// Included before everything else (g++ -include fake_cuda/device.h), it takes
// the toolkit's own headers, which work with a host compiler for types, error
// codes, vector types and BF16/FP16 arithmetic, and adds what they hide from
// one: threadIdx and its like, `__shared__`, barriers, shuffles, atomics, and
// the fast math functions. The runtime API is not touched: cudaMalloc and all
// others are declared by cuda_runtime_api.h and defined by the double at link
// time, so a call with a wrong signature is a compile error and one that the
// double lacks is a link error.
//
// Not here, and so not for kernels that must run on the double: `extern
// __shared__` (use DynamicShared() of launch.h), <<<>>>, inline PTX, WMMA,
// cooperative groups, clusters, TMA, textures, spinning on another block.
#ifndef TESTS_FAKE_CUDA_DEVICE_H_
#define TESTS_FAKE_CUDA_DEVICE_H_

#ifdef __CUDACC__
#error "fake_cuda/device.h is for host compilers; nvcc has the real thing"
#endif

#define SHARDGRAPH_FAKE_CUDA 1

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tests/fake_cuda/device_math.h"

// One block runs at a time, so a block's shared variables are static ones.
// Note: Shared variables. `noinit` puts them, those of templates included
// (g++ forgets a section attribute there), into sections named .noinit*, where
// the double finds and poisons them; initializers are errors as in CUDA. The
// assembler warns that the section has the wrong type: pass -Wa,--no-warn.
#undef __shared__
#ifdef __clang__
#define __shared__ static __attribute__((section("fake_cuda_shared")))
#else
#define __shared__ static __attribute__((noinit))
#endif
#define __launch_bounds__(...)
// `__forceinline__`, `__device__`, `__global__`, `__host__`, `__constant__` and
// `__align__` come from the toolkit; `__restrict__` is the compiler's own.

// Rebound at every fiber switch (threadIdx) or block (the others). Variables,
// not macros: cudaLaunchConfig_t has members of these names.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
inline constexpr int warpSize = 32;

namespace shardgraph::fake_cuda {

// What kernels call, in block.cc.

enum class WarpOp : uint8_t {
  kSync,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kMatchAny,
  kAdd,
  kOr,
  kAnd,
  kXor,
  kMinSigned,
  kMinUnsigned,
  kMaxSigned,
  kMaxUnsigned,
};
enum class BlockOp : uint8_t { kSync, kOr, kAnd, kCount };

// Waits until all lanes of `mask` are in the same operation; returns this
// lane's result. For shuffles `argument` is the lane, delta or mask; `width` a
// power of two up to 32.
uint64_t WarpExchange(WarpOp op, unsigned mask, uint64_t value, int argument,
                      int width);
int BlockExchange(BlockOp op, int predicate);
void* DynamicShared();
unsigned ActiveMask();
void Fence();
void SystemFence();
[[noreturn]] void Trap(const char* what);

// Kernels as values, in runtime.cc.

// How to call a kernel given an array of pointers to its arguments.
struct KernelType {
  void (*invoke)(const void* kernel, const unsigned char* arguments);
  size_t argument_bytes;
  int parameters;
  // Offset and size of each parameter in the copy.
  const size_t* offsets;
  const size_t* sizes;
};
void RegisterKernel(const void* kernel, const KernelType& type);

template <typename... Parameters>
struct KernelTypeOf {
  static constexpr int kCount = sizeof...(Parameters);
  static constexpr std::array<size_t, kCount + 1> kSizes = {
      sizeof(Parameters)..., 0};
  static constexpr auto kOffsets = [] {
    constexpr std::array<size_t, kCount + 1> kAlign = {alignof(Parameters)...,
                                                       1};
    std::array<size_t, kCount + 1> offsets = {};
    size_t end = 0;
    for (int i = 0; i < kCount; ++i) {
      end = (end + kAlign[i] - 1) / kAlign[i] * kAlign[i];
      offsets[i] = end;
      end += kSizes[i];
    }
    offsets[kCount] = end;
    return offsets;
  }();
  // Unwatched: the copy of the arguments is the double's own memory.
  template <size_t... I>
  __attribute__((no_sanitize("thread"))) static void Call(
      const void* kernel, const unsigned char* arguments,
      std::index_sequence<I...>) {
    reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel))(
        *reinterpret_cast<const Parameters*>(arguments + kOffsets[I])...);
  }
  static void Invoke(const void* kernel, const unsigned char* arguments) {
    Call(kernel, arguments, std::index_sequence_for<Parameters...>());
  }
  static constexpr KernelType kType = {&Invoke, kOffsets[kCount], kCount,
                                       kOffsets.data(), kSizes.data()};
};

// Tells the double the parameter types of `kernel`, which cudaLaunchKernelExC
// is given only as addresses.
template <typename... Parameters>
void DescribeKernel(void (*kernel)(Parameters...)) {
  RegisterKernel(reinterpret_cast<const void*>(kernel),
                 KernelTypeOf<Parameters...>::kType);
}

template <typename T>
uint64_t ToBits(const T& value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <typename T>
T FromBits(uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

template <typename T>
T WarpReduce(WarpOp op, unsigned mask, T value) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>);
  return static_cast<T>(
      WarpExchange(op, mask, static_cast<unsigned>(value), 0, 32));
}

}  // namespace shardgraph::fake_cuda

// Barriers and warp operations.

inline void __syncthreads() {
  ::shardgraph::fake_cuda::BlockExchange(
      ::shardgraph::fake_cuda::BlockOp::kSync, 0);
}
inline int __syncthreads_or(int p) {
  return ::shardgraph::fake_cuda::BlockExchange(
      ::shardgraph::fake_cuda::BlockOp::kOr, p);
}
inline int __syncthreads_and(int p) {
  return ::shardgraph::fake_cuda::BlockExchange(
      ::shardgraph::fake_cuda::BlockOp::kAnd, p);
}
inline int __syncthreads_count(int p) {
  return ::shardgraph::fake_cuda::BlockExchange(
      ::shardgraph::fake_cuda::BlockOp::kCount, p);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  ::shardgraph::fake_cuda::WarpExchange(::shardgraph::fake_cuda::WarpOp::kSync,
                                        mask, 0, 0, 32);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return ::shardgraph::fake_cuda::FromBits<T>(
      ::shardgraph::fake_cuda::WarpExchange(
          ::shardgraph::fake_cuda::WarpOp::kShuffle, mask,
          ::shardgraph::fake_cuda::ToBits(value), lane, width));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return ::shardgraph::fake_cuda::FromBits<T>(
      ::shardgraph::fake_cuda::WarpExchange(
          ::shardgraph::fake_cuda::WarpOp::kShuffleUp, mask,
          ::shardgraph::fake_cuda::ToBits(value), static_cast<int>(delta),
          width));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return ::shardgraph::fake_cuda::FromBits<T>(
      ::shardgraph::fake_cuda::WarpExchange(
          ::shardgraph::fake_cuda::WarpOp::kShuffleDown, mask,
          ::shardgraph::fake_cuda::ToBits(value), static_cast<int>(delta),
          width));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  return ::shardgraph::fake_cuda::FromBits<T>(
      ::shardgraph::fake_cuda::WarpExchange(
          ::shardgraph::fake_cuda::WarpOp::kShuffleXor, mask,
          ::shardgraph::fake_cuda::ToBits(value), lane_mask, width));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(::shardgraph::fake_cuda::WarpExchange(
      ::shardgraph::fake_cuda::WarpOp::kBallot, mask, predicate != 0, 0, 32));
}
inline int __any_sync(unsigned mask, int p) {
  return __ballot_sync(mask, p) != 0;
}
inline int __all_sync(unsigned mask, int p) {
  return __ballot_sync(mask, p) == mask;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(::shardgraph::fake_cuda::WarpExchange(
      ::shardgraph::fake_cuda::WarpOp::kMatchAny, mask,
      ::shardgraph::fake_cuda::ToBits(value), 0, 32));
}
inline unsigned __activemask() { return ::shardgraph::fake_cuda::ActiveMask(); }

template <typename T>
T __reduce_add_sync(unsigned mask, T value) {
  return ::shardgraph::fake_cuda::WarpReduce(
      ::shardgraph::fake_cuda::WarpOp::kAdd, mask, value);
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value) {
  return ::shardgraph::fake_cuda::WarpReduce(
      std::is_signed_v<T> ? ::shardgraph::fake_cuda::WarpOp::kMinSigned
                          : ::shardgraph::fake_cuda::WarpOp::kMinUnsigned,
      mask, value);
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
  return ::shardgraph::fake_cuda::WarpReduce(
      std::is_signed_v<T> ? ::shardgraph::fake_cuda::WarpOp::kMaxSigned
                          : ::shardgraph::fake_cuda::WarpOp::kMaxUnsigned,
      mask, value);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return ::shardgraph::fake_cuda::WarpReduce(
      ::shardgraph::fake_cuda::WarpOp::kOr, mask, value);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
  return ::shardgraph::fake_cuda::WarpReduce(
      ::shardgraph::fake_cuda::WarpOp::kAnd, mask, value);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
  return ::shardgraph::fake_cuda::WarpReduce(
      ::shardgraph::fake_cuda::WarpOp::kXor, mask, value);
}

// Memory.

// Cache hints mean nothing here.
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldca(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
T __ldlu(const T* p) {
  return *p;
}
template <typename T>
T __ldcv(const T* p) {
  return *p;
}
template <typename T>
void __stwb(T* p, T v) {
  *p = v;
}
template <typename T>
void __stcg(T* p, T v) {
  *p = v;
}
template <typename T>
void __stcs(T* p, T v) {
  *p = v;
}
template <typename T>
void __stwt(T* p, T v) {
  *p = v;
}

// Atomics are sequentially consistent here, so fences add nothing to what is
// computed; the checker wants one before an atomic that publishes data.
inline void __threadfence() { ::shardgraph::fake_cuda::Fence(); }
inline void __threadfence_system() { ::shardgraph::fake_cuda::SystemFence(); }
inline void __threadfence_block() {}

template <typename T, typename U>
requires std::integral<T> || std::floating_point<T> T atomicAdd(T* p, U v) {
  return std::atomic_ref<T>(*p).fetch_add(static_cast<T>(v));
}
template <std::integral T, typename U>
T atomicSub(T* p, U v) {
  return std::atomic_ref<T>(*p).fetch_sub(static_cast<T>(v));
}
template <std::integral T, typename U>
T atomicOr(T* p, U v) {
  return std::atomic_ref<T>(*p).fetch_or(static_cast<T>(v));
}
template <std::integral T, typename U>
T atomicAnd(T* p, U v) {
  return std::atomic_ref<T>(*p).fetch_and(static_cast<T>(v));
}
template <std::integral T, typename U>
T atomicXor(T* p, U v) {
  return std::atomic_ref<T>(*p).fetch_xor(static_cast<T>(v));
}
template <typename T, typename U>
T atomicExch(T* p, U v) {
  return std::atomic_ref<T>(*p).exchange(static_cast<T>(v));
}
template <std::integral T, typename U, typename V>
T atomicCAS(T* p, U expected, V desired) {
  T old = static_cast<T>(expected);
  std::atomic_ref<T>(*p).compare_exchange_strong(old, static_cast<T>(desired));
  return old;
}
template <std::integral T, typename U>
T atomicMax(T* p, U v) {
  std::atomic_ref<T> a(*p);
  T old = a.load();
  while (old < static_cast<T>(v) &&
         !a.compare_exchange_weak(old, static_cast<T>(v))) {
  }
  return old;
}
template <std::integral T, typename U>
T atomicMin(T* p, U v) {
  std::atomic_ref<T> a(*p);
  T old = a.load();
  while (static_cast<T>(v) < old &&
         !a.compare_exchange_weak(old, static_cast<T>(v))) {
  }
  return old;
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
  std::atomic_ref<unsigned> a(*p);
  unsigned old = a.load();
  while (!a.compare_exchange_weak(old, old >= limit ? 0 : old + 1)) {
  }
  return old;
}

// Runtime templates that cuda_runtime.h shows to nvcc only.

template <typename T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute,
                                 int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                attribute, value);
}
template <typename T>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, T* kernel) {
  return ::cudaFuncGetAttributes(attributes,
                                 reinterpret_cast<const void*>(kernel));
}

#endif  // TESTS_FAKE_CUDA_DEVICE_H_
