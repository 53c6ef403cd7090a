// Communicator: collectives over one named group of ranks, issued on a lane.
//
// All ranks of the group call the same collectives in the same order with the
// same counts and dtypes. One communicator is used by one lane; a backend makes
// one per (group, lane), so that lanes cannot block each other. CPU
// communicators block the calling lane thread until the collective is done;
// NCCL enqueues on lane.stream.
//
// Reductions add in rank order, ((r0 + r1) + r2) + ..., in FP32 (F64 and I64 in
// their own dtype): every implementation gives the same bits. Counts of 0 are
// legal. A collective never rounds at each hop.
//
// Errors: a peer that is lost or later than the timeout gives DeadlineExceeded
// or Unavailable whose message names the rank(s), the collective and its
// sequence number. After an error the communicator is broken: every later call
// returns that first error. Abort makes it so from another thread and wakes
// everybody who waits, on this rank and, where the transport can tell them, on
// the others.
#ifndef KERNELS_COLLECTIVE_COMMUNICATOR_H_
#define KERNELS_COLLECTIVE_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/lane.h"
#include "kernels/tensor.h"

namespace shardgraph {

enum class ReduceOp { kSum, kMax };

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // shard: `count` elements; full: size() x count elements, rank r's piece at r
  // x count. shard may be that piece of full.
  virtual absl::Status AllGather(const void* shard, void* full, int64_t count,
                                 DType dtype, Lane& lane) = 0;
  // full: size() x count elements; shard: `count` elements, the sum over ranks
  // of piece rank(). shard may be that piece of full. dtype F32 or F64.
  virtual absl::Status ReduceScatter(const void* full, void* shard,
                                     int64_t count, DType dtype,
                                     Lane& lane) = 0;
  // In place over `count` elements. F32, F64, I32, I64.
  virtual absl::Status AllReduce(void* data, int64_t count, DType dtype,
                                 ReduceOp op, Lane& lane) = 0;
  // send and receive: size() x count elements each, not overlapping; piece s of
  // rank r's send arrives as piece r at s.
  virtual absl::Status AllToAll(const void* send, void* receive, int64_t count,
                                DType dtype, Lane& lane) = 0;
  // In place over `count` elements from rank `root`.
  virtual absl::Status Broadcast(void* data, int64_t count, DType dtype,
                                 int root, Lane& lane) = 0;
  virtual absl::Status Barrier(Lane& lane) = 0;

  // From any thread; idempotent; the first reason wins.
  virtual void Abort(const absl::Status& reason) = 0;
};

// All groups of one process: made once after rendezvous, hands out
// communicators.
//
// Groups are named as in the plan ("world", "shard", "replicate"); `ranks` are
// world ranks in group order and the same on all of its members. `channel`
// tells apart communicators over the same group (one per lane, plus one for
// control).
class CommunicatorFactory {
 public:
  virtual ~CommunicatorFactory() = default;

  virtual int rank() const = 0;  // world rank
  virtual int size() const = 0;  // world size

  // Collective over `ranks`, which contain rank(). All ranks create their
  // communicators in the same order.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view group, absl::Span<const int> ranks, int channel) = 0;

  // Memory that collectives of this factory can move without staging (a shared
  // window, registered memory), zero filled and 4,096-byte aligned; collective
  // over the world, the same `bytes` everywhere. Null with OK: none better than
  // malloc. Freed with the factory.
  virtual absl::StatusOr<void*> AllocateWindow(int64_t bytes) = 0;

  // How long each later meeting of ranks may take, in communicators made
  // before and after: long until the first step is done, shorter then. From any
  // thread.
  virtual void SetTimeout(absl::Duration timeout) {}
};

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_COMMUNICATOR_H_
