// Warp operations: lanes wait for each other, the last one exchanges values.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "tests/fake_cuda/block_state.h"
#include "tests/fake_cuda/checker.h"
#include "tests/fake_cuda/device.h"

namespace shardgraph::fake_cuda {
namespace {

bool SameOp(const Thread& x, const Thread& y) {
  return x.warp_op == y.warp_op && x.mask == y.mask;
}

// All lanes of `lanes` have arrived in the same operation: exchanges values.
void Complete(int warp, unsigned lanes) {
  Thread* lane0 = &b.thread[warp * 32];
  uint64_t in[32];
  unsigned ballot = 0;
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    in[lane] = lane0[lane].value;
    if (in[lane] != 0) ballot |= 1u << lane;
  }
  const WarpOp op = lane0[std::countr_zero(lanes)].warp_op;
  if (op == WarpOp::kSync) {
    checker::WarpBarrier(warp * 32, lanes);
    return;
  }
  if (op >= WarpOp::kAdd) {
    uint32_t total = 0;
    bool first = true;
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
      const auto v = static_cast<uint32_t>(in[std::countr_zero(rest)]);
      const auto s = static_cast<int32_t>(v), t = static_cast<int32_t>(total);
      if (first) {
        total = v;
        first = false;
        continue;
      }
      switch (op) {
        case WarpOp::kAdd:
          total += v;
          break;
        case WarpOp::kOr:
          total |= v;
          break;
        case WarpOp::kAnd:
          total &= v;
          break;
        case WarpOp::kXor:
          total ^= v;
          break;
        case WarpOp::kMinSigned:
          total = s < t ? v : total;
          break;
        case WarpOp::kMaxSigned:
          total = s > t ? v : total;
          break;
        case WarpOp::kMinUnsigned:
          total = std::min(total, v);
          break;
        default:
          total = std::max(total, v);
          break;
      }
    }
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
      lane0[std::countr_zero(rest)].value = total;
    }
    return;
  }
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Thread& t = lane0[lane];
    int source = lane;
    const int segment = lane & ~(t.width - 1);
    switch (op) {
      case WarpOp::kBallot:
        t.value = ballot;
        continue;
      case WarpOp::kMatchAny: {
        unsigned same = 0;
        for (unsigned r = lanes; r != 0; r &= r - 1) {
          const int other = std::countr_zero(r);
          if (in[other] == in[lane]) same |= 1u << other;
        }
        t.value = same;
        continue;
      }
      case WarpOp::kShuffle:
        source = segment | (t.argument & (t.width - 1));
        break;
      case WarpOp::kShuffleUp:
        source = lane - t.argument < segment ? lane : lane - t.argument;
        break;
      case WarpOp::kShuffleDown:
        source =
            lane + t.argument >= segment + t.width ? lane : lane + t.argument;
        break;
      default:
        source =
            (lane ^ t.argument) >= segment + t.width ? lane : lane ^ t.argument;
        break;
    }
    if (!(lanes >> source & 1)) {
      Blame(cudaErrorLaunchFailure, "shuffle of lane " + std::to_string(lane) +
                                        " from lane " + std::to_string(source) +
                                        ", which does not take part");
      Abandon();
    }
    t.value = in[source];
  }
}

}  // namespace

void CompleteWithoutEnded(int warp) {
  Warp& w = b.warp[warp];
  unsigned waiting = w.in_warp_op;
  while (waiting != 0) {
    const Thread& t = b.thread[warp * 32 + std::countr_zero(waiting)];
    waiting &= waiting - 1;
    const unsigned need = t.mask & ~w.done;
    if ((w.in_warp_op & need) != need) continue;
    bool same = true;
    for (unsigned r = need; r != 0; r &= r - 1) {
      same = same && SameOp(t, b.thread[warp * 32 + std::countr_zero(r)]);
    }
    if (!same) continue;
    Complete(warp, need);
    w.in_warp_op &= ~need;
    Wake(warp, need);
    waiting &= ~need;
  }
}

uint64_t WarpExchange(WarpOp op, unsigned mask, uint64_t value, int argument,
                      int width) {
  const int self = b.current;
  const int warp = self / 32;
  Thread& t = b.thread[self];
  Warp& w = b.warp[warp];
  t.warp_op = op;
  t.mask = mask;
  t.value = value;
  t.argument = argument;
  t.width = width;
  if (!(mask & LaneBit(self))) {
    Blame(cudaErrorLaunchFailure, "warp operation whose mask lacks the caller");
    Abandon();
  }
  w.in_warp_op |= LaneBit(self);
  const unsigned need = mask & ~w.done;
  if ((w.in_warp_op & need) == need) {
    for (unsigned r = need; r != 0; r &= r - 1) {
      if (!SameOp(t, b.thread[warp * 32 + std::countr_zero(r)])) {
        Blame(cudaErrorLaunchFailure,
              "lanes of a mask in different warp operations or with different "
              "masks");
        Abandon();
      }
    }
    Complete(warp, need);
    w.in_warp_op &= ~need;
    Wake(warp, need & ~LaneBit(self));
    return t.value;
  }
  Wait();
  return t.value;
}

unsigned ActiveMask() { return ~b.warp[b.current / 32].done; }

}  // namespace shardgraph::fake_cuda
