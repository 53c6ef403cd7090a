#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_block.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/target.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/rotary_row.h"
#include "kernels/random/random.h"

namespace shardgraph {
namespace {

// Rows of head h of a tensor [B, T, H, D] at batch b.
HeadRows HeadOf(const Tensor& tensor, int64_t b, int64_t h) {
  const TensorType& type = tensor.type;
  return {tensor.as<char>() +
              SizeOf(type.dtype) * (b * type.strides[0] + h * type.strides[2]),
          type.strides[1]};
}

// Where dropout finds its stream.
struct Dropout {
  AttentionConfig config;
  const int64_t* sequence_ids = nullptr;
  const int64_t* run_step = nullptr;
};

void Kept(const AttentionHead& head, int64_t i_begin, int64_t j_begin,
          int64_t rows, int64_t columns, int64_t row_stride,
          int64_t column_stride, float* kept) {
  const Dropout& dropout = *static_cast<const Dropout*>(head.dropout);
  const AttentionConfig& config = dropout.config;
  const RandomKey key =
      MakeRandomKey(config.seed, config.key, *dropout.run_step,
                    dropout.sequence_ids[head.batch]);
  const uint32_t threshold = DropoutThreshold(config.dropout);
  const float scale = static_cast<float>(1 / (1 - config.dropout));
  for (int64_t i = 0; i < rows; ++i) {
    const uint64_t first =
        (head.index * config.queries + i_begin + i) * config.keys + j_begin;
    PhiloxBlock block = RandomBlock(key, first / 4);
    for (int64_t j = 0; j < columns; ++j) {
      const uint64_t index = first + j;
      if (index % 4 == 0) block = RandomBlock(key, index / 4);
      kept[i * row_stride + j * column_stride] =
          block[index % 4] >= threshold ? scale : 0;
    }
  }
}

// Cosines and sines [B * T, D] that q and k are turned by.
int64_t AnglesBytes(const Attributes& attributes, const TensorType& q) {
  if (attributes.Int("has_rotary") == 0) return 0;
  return sizeof(float) * q.dim(0) * q.dim(1) * q.dim(3);
}

// All heads of an op, bound to memory. Stays where it is: heads point into it.
struct Heads {
  // q is operand `first`; the optional operands start at `next`. `angle_memory`
  // holds AnglesBytes.
  Heads(const KernelContext& context, int first, int next, float* angle_memory)
      : config(*context.attributes, context.operands[first].type,
               context.operands[first + 1].type),
        dropout{config} {
    const Tensor& q = context.operands[first];
    const int32_t* documents = nullptr;
    if (config.has_rotary) {
      positions = context.operands[next++].as<int32_t>();
      angles = angle_memory;
      frequencies = RotaryFrequencies(*context.attributes, config.width);
      type = ElementTypeOf(q.type.dtype);
    }
    if (config.has_offset) offset = context.operands[next++].as<int64_t>();
    if (config.has_documents)
      documents = context.operands[next++].as<int32_t>();
    if (config.dropout > 0) {
      dropout.sequence_ids = context.operands[next].as<int64_t>();
      dropout.run_step = context.operands[next + 1].as<int64_t>();
    }
    for (int64_t b = 0; b < config.batch; ++b) {
      for (int64_t h = 0; h < config.heads; ++h) {
        AttentionHead head;
        head.bf16 = q.type.dtype == DType::kBF16;
        head.queries = config.queries;
        head.keys = config.keys;
        head.width = config.width;
        head.scale = static_cast<float>(config.scale);
        head.causal = config.causal;
        if (documents != nullptr) head.documents = documents + b * config.keys;
        if (config.dropout > 0) {
          head.kept = Kept;
          head.dropout = &dropout;
        }
        head.batch = b;
        head.index = h;
        if (config.has_rotary)
          head.rotary = angles + b * config.queries * config.width;
        head.q = HeadOf(q, b, h);
        head.k = HeadOf(context.operands[first + 1], b, group(h));
        head.v = HeadOf(context.operands[first + 2], b, group(h));
        heads.push_back(head);
      }
    }
  }
  Heads(const Heads&) = delete;
  Heads& operator=(const Heads&) = delete;

  int64_t group(int64_t h) const { return h / config.heads_per_group(); }

  // Of this launch's positions.
  void MakeAngles(ThreadPool* pool) const {
    if (!config.has_rotary || config.width == 0) return;
    pool->ParallelFor(config.batch * config.queries, RowGrain(config.width),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t row = begin; row < end; ++row) {
                          RotaryAngles of_row;
                          of_row.type = type;
                          of_row.half = config.width / 2;
                          of_row.position = static_cast<float>(positions[row]);
                          of_row.frequencies = frequencies.data();
                          of_row.cosines = angles + row * config.width;
                          of_row.sines = of_row.cosines + of_row.half;
                          make_angles(of_row);
                        }
                      });
  }

  AttentionConfig config;
  Dropout dropout;
  const int64_t* offset = nullptr;
  const int32_t* positions = nullptr;
  float* angles = nullptr;
  AnglesFunction* make_angles = SG_BEST_CPU_TARGET(Angles);
  std::vector<float> frequencies;
  ElementType type = ElementType::kF32;
  std::vector<AttentionHead> heads;  // in order of batch, then head
};

absl::Status SupportsTypes(const TensorType& q) {
  if (q.dtype != DType::kF32 && q.dtype != DType::kBF16) {
    return absl::UnimplementedError(
        absl::StrCat(DTypeName(q.dtype), "; F32 and BF16 are supported"));
  }
  if (q.dim(3) > kMaxHeadWidth) {
    return absl::UnimplementedError(
        absl::StrCat("heads of width ", q.dim(3), "; at most ", kMaxHeadWidth));
  }
  return absl::OkStatus();
}

absl::Status Supports(const Attributes&, absl::Span<const TensorType> operands,
                      absl::Span<const TensorType>) {
  return SupportsTypes(operands[0]);
}
absl::Status SupportsGradient(const Attributes&,
                              absl::Span<const TensorType> operands,
                              absl::Span<const TensorType>) {
  return SupportsTypes(operands[1]);
}

// The best of functions of one name for heads like q's: BF16 heads are for the
// processor's products of BF16 where it has them.
template <typename F>
F* Best(const Tensor& q, F* fp32, F* avx512_bf16, F* amx) {
  if (q.type.dtype != DType::kBF16) return fp32;
  switch (BestCpuTarget()) {
    case CpuTarget::kAmx:
      return amx;
    case CpuTarget::kAvx512Bf16:
      return avx512_bf16;
    default:
      return fp32;
  }
}

int64_t Workspace(const Attributes& attributes,
                  absl::Span<const TensorType> operands,
                  absl::Span<const TensorType>) {
  return AnglesBytes(attributes, operands[0]);
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> Prepare(
    const KernelContext& context) {
  auto all =
      std::make_unique<Heads>(context, 0, 3, context.workspace.as<float>());
  float* lse = context.results[1].as<float>();
  for (AttentionHead& head : all->heads) {
    head.out = HeadOf(context.results[0], head.batch, head.index);
    head.lse = lse;
    lse += head.queries;
  }
  return MakeKernel(
      [all = std::move(all),
       run = Best(context.operands[0], SG_BEST_CPU_TARGET(AttentionForward),
                  &avx512_bf16::AttentionForward,
                  &amx::AttentionForward)](Lane& lane) {
        all->MakeAngles(lane.pool);
        const int64_t offset = all->offset == nullptr ? 0 : *all->offset;
        const int64_t blocks =
            (all->config.queries + kAttentionQueries - 1) / kAttentionQueries;
        const auto body = [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; ++task) {
            AttentionHead head = all->heads[task / blocks];
            head.offset = offset;
            // The last queries see most keys: begin with them.
            run(head, (blocks - 1 - task % blocks) * kAttentionQueries);
          }
        };
        lane.pool->ParallelFor(all->heads.size() * blocks, 1, body);
      });
}

// FP32 sums of dq [B, H, T, D], then sums over d of dout * out [B, H, T], then
// angles.
int64_t GradientWorkspace(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          absl::Span<const TensorType>) {
  return sizeof(float) *
             (operands[1].num_elements() + operands[5].num_elements()) +
         AnglesBytes(attributes, operands[1]);
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareGradient(
    const KernelContext& context) {
  float* lse = context.operands[5].as<float>();
  float* dq_sums = context.workspace.as<float>();
  float* deltas = dq_sums + context.operands[1].type.num_elements();
  auto all = std::make_unique<Heads>(
      context, 1, 6, deltas + context.operands[5].type.num_elements());
  for (AttentionHead& head : all->heads) {
    const int64_t b = head.batch, h = head.index, g = all->group(head.index);
    head.out = HeadOf(context.operands[4], b, h);
    head.lse = lse;
    head.dout = HeadOf(context.operands[0], b, h);
    head.dq = HeadOf(context.results[0], b, h);
    head.dk = HeadOf(context.results[1], b, g);
    head.dv = HeadOf(context.results[2], b, g);
    head.dq_sums = dq_sums;
    head.deltas = deltas;
    lse += head.queries;
    dq_sums += head.queries * head.width;
    deltas += head.queries;
  }
  return MakeKernel([all = std::move(all),
                     run = Best(context.operands[1],
                                SG_BEST_CPU_TARGET(AttentionGradient),
                                &avx512_bf16::AttentionGradient,
                                &amx::AttentionGradient)](Lane& lane) {
    all->MakeAngles(lane.pool);
    // One task per key head: it owns its dk, dv and the dq of its group.
    const int64_t count = all->config.heads_per_group();
    const auto body = [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) run(&all->heads[g * count], count);
    };
    lane.pool->ParallelFor(all->config.batch * all->config.kv_heads, 1, body);
  });
}

constexpr KernelDef kKernels[] = {
    {.op = "attention",
     .supports = Supports,
     .workspace = Workspace,
     .prepare = Prepare},
    {.op = "attention_gradient",
     .supports = SupportsGradient,
     .workspace = GradientWorkspace,
     .prepare = PrepareGradient},
};

}  // namespace

absl::Span<const KernelDef> AttentionCpuKernels() { return kKernels; }

}  // namespace shardgraph
