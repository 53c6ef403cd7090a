// The output head fused with cross-entropy: logits exist a few rows at a time.
//
// cross_entropy_head(x, weight, targets) -> stats
//   z[n, v] = sum over c of x[n, c] weight[v, c]
//   lse[n]  = log(sum over v of exp(z[n, v]))
//   loss[n] = lse[n] - (1 - label_smoothing) z[n, targets[n]]
//             - label_smoothing / V * (sum over v of z[n, v])
//             + z_loss lse[n]^2
//   stats   = (sum of loss[n] over unmasked n, number of unmasked n)
//   x        [N, C]
//   weight   [V, C] of the same dtype; as a token embedding has it (tied heads)
//   targets  I32[N] in [0, V), or -100: masked, no loss and no gradient
//   stats    F64[2]; nats
//   Attributes: chunk_rows, at least 1: rows of logits at a time;
//   label_smoothing in [0, 1) as in torch's cross_entropy and z_loss, at least
//   0 (Chowdhery et al., "PaLM", 2022, section 5), both doubles, 0 if absent.
//   z is rounded to x's dtype; the softmax is FP32 from there; losses of rows
//   are FP32, their sum FP64 in row order.
//   Cost: 2 N V C matmul FLOPs.
//
// cross_entropy_head_gradient(x, weight, targets, loss_scale, nominal_tokens)
//     -> stats, dx, dweight
//   Gradient of loss_scale / nominal_tokens * (sum of loss) and, in the same
//   pass, the loss itself.
//   dz[n, v] = ((1 + 2 z_loss lse[n]) softmax(z[n])[v]
//               - (1 - label_smoothing) [v == targets[n]]
//               - label_smoothing / V) * loss_scale / nominal_tokens,
//              0 for masked n
//   dx = dz weight,  dweight = transpose(dz) x
//   loss_scale      scalar F32; nominal_tokens scalar F64 (tokens of a full
//                   global batch)
//   stats           F64[2] as above, not scaled
//   dx              [N, C] of x's dtype
//   dweight         [V, C]; may accumulate (bit 2)
//   Attributes: chunk_rows; dtype of dweight (default that of weight); omit (dx
//   or dweight, of a frozen input or head).
//   dz is rounded to x's dtype and takes the place of the chunk's logits. A
//   dweight that is not F32 is rounded after every chunk; an F32 one never in
//   between.
//   Cost: 6 N V C matmul FLOPs, 2 N V C less for each gradient left out.
//
// A target out of range is a fault of the data layer: the reference aborts, the
// CPU kernel reads nothing out of bounds and gives that row no target.
#ifndef KERNELS_LOSS_LOSS_H_
#define KERNELS_LOSS_LOSS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

inline constexpr int32_t kMaskedTarget = -100;

// Rows of logits that a kernel holds at a time.
int64_t ChunkRows(const Attributes& attributes, const TensorType& x);

absl::Span<const OpDef* const> LossOps();
absl::Span<const KernelDef> LossReferenceKernels();  // every floating dtype
absl::Span<const KernelDef> LossCpuKernels();        // F32, BF16
absl::Span<const KernelDef> LossCudaKernels();

}  // namespace shardgraph

#endif  // KERNELS_LOSS_LOSS_H_
