#include "tools/bench/onednn_matmul.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace shardgraph {
namespace {

using dnnl::memory;

memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16
                               : memory::data_type::f32;
}

memory::desc Plain(int64_t rows, int64_t columns, DType dtype,
                   bool transposed) {
  return memory::desc(
      {rows, columns}, TypeOf(dtype),
      transposed ? memory::format_tag::ba : memory::format_tag::ab);
}

class Impl final : public OnednnMatmul {
 public:
  Impl(const MatmulShape& shape, bool packed)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const memory::desc a = Plain(shape.m, shape.k, shape.in, shape.transpose_a);
    const memory::desc b =
        packed ? memory::desc({shape.k, shape.n}, TypeOf(shape.in),
                              memory::format_tag::any)
               : Plain(shape.k, shape.n, shape.in, shape.transpose_b);
    const memory::desc y = Plain(shape.m, shape.n, shape.out, false);
    const dnnl::matmul::primitive_desc what(dnnl::matmul::desc(a, b, y),
                                            engine_);
    matmul_ = dnnl::matmul(what);
    arguments_ = {{DNNL_ARG_SRC, memory(what.src_desc(), engine_)},
                  {DNNL_ARG_WEIGHTS, memory(what.weights_desc(), engine_)},
                  {DNNL_ARG_DST, memory(what.dst_desc(), engine_)}};
    std::minstd_rand random;
    for (auto& [id, data] : arguments_) {
      // From 1/128 on to below 1/32, of either sign, as BF16 and as F32.
      auto* const words = static_cast<uint16_t*>(data.get_data_handle());
      std::generate_n(
          words, data.get_desc().get_size() / sizeof(uint16_t), [&random] {
            const uint32_t bits = static_cast<uint32_t>(random()) >> 8;
            return static_cast<uint16_t>(0x3c00 | (bits & 0x80ff));
          });
    }
    Run();
  }

  double Run() override {
    const auto begin = std::chrono::steady_clock::now();
    matmul_.execute(stream_, arguments_);
    stream_.wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, memory> arguments_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OnednnMatmul>> OnednnMatmul::Create(
    const MatmulShape& shape, bool packed) {
  try {
    return std::make_unique<Impl>(shape, packed);
  } catch (const dnnl::error& error) {
    return absl::UnimplementedError(absl::StrCat(
        "oneDNN has no ", DTypeName(shape.in), " product ", shape.m, " x ",
        shape.n, " x ", shape.k, ": ", error.what()));
  }
}

MatmulShape LargeMatmulShape() {
  const MatmulShape small = {.m = 1, .n = 1, .k = 1};
  if (OnednnMatmul::Create(small, /*packed=*/false).ok())
    return {.m = 4096, .n = 4096, .k = 4096};
  MatmulShape shape = {.m = 2048, .n = 2048, .k = 2048};
  shape.in = shape.out = DType::kF32;
  return shape;
}

}  // namespace shardgraph
