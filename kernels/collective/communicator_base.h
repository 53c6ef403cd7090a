// CommunicatorBase: what all communicators have in common: checked arguments,
// sequence numbers, and the first error that every later call returns.
//
// A transport implements Run, which gets one checked call at a time.
#ifndef KERNELS_COLLECTIVE_COMMUNICATOR_BASE_H_
#define KERNELS_COLLECTIVE_COMMUNICATOR_BASE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/collective/communicator.h"
#include "kernels/lane.h"
#include "kernels/tensor.h"

namespace shardgraph {

enum class Collective : int32_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kBarrier
};

// "all_gather", "reduce_scatter", ...
absl::string_view CollectiveName(Collective collective);

// One call. All ranks of a group make the same ones, so equal calls meet. Plain
// data without gaps: may lie in shared memory.
struct CollectiveCall {
  Collective collective = Collective::kBarrier;
  int32_t dtype = 0;  // a DType
  int32_t op = 0;     // a ReduceOp
  int32_t root = 0;
  int64_t count = 0;
  int64_t sequence = 0;  // 1, 2, ... per communicator

  DType element() const { return static_cast<DType>(dtype); }
  ReduceOp reduce_op() const { return static_cast<ReduceOp>(op); }
  // Bytes of what each of `size` ranks sends and receives.
  int64_t in_bytes(int size) const;
  int64_t out_bytes(int size) const;
  // "all_gather #12 (F32 x 1024)"
  std::string ToString() const;

  friend bool operator==(const CollectiveCall&,
                         const CollectiveCall&) = default;
};

class CommunicatorBase : public Communicator {
 public:
  // `ranks`: world ranks in group order, which contain `world_rank`.
  CommunicatorBase(absl::string_view group, absl::Span<const int> ranks,
                   int world_rank, int channel);

  int rank() const final { return rank_; }
  int size() const final { return static_cast<int>(ranks_.size()); }

  absl::Status AllGather(const void* shard, void* full, int64_t count,
                         DType dtype, Lane& lane) final;
  absl::Status ReduceScatter(const void* full, void* shard, int64_t count,
                             DType dtype, Lane& lane) final;
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                         Lane& lane) final;
  absl::Status AllToAll(const void* send, void* receive, int64_t count,
                        DType dtype, Lane& lane) final;
  absl::Status Broadcast(void* data, int64_t count, DType dtype, int root,
                         Lane& lane) final;
  absl::Status Barrier(Lane& lane) final;
  void Abort(const absl::Status& reason) final;

 protected:
  // Does `call`: `in` is what is sent, `out` what is received, both the same
  // for all-reduce and broadcast, null for a barrier. An error breaks the
  // communicator.
  virtual absl::Status Run(const CollectiveCall& call, const void* in,
                           void* out, Lane& lane) = 0;
  // Wakes a Run that waits, here and, where possible, on the other ranks; `Run`
  // then returns whatever it likes. From any thread.
  virtual void OnAbort(const absl::Status& reason) = 0;

  // World ranks of the group.
  absl::Span<const int> ranks() const { return ranks_; }
  // "all_gather #12 (F32 x 1024) of group 'world', channel 0"
  std::string Describe(const CollectiveCall& call) const;
  // OK, or the error that broke this communicator.
  absl::Status first_error() const;

 private:
  absl::Status Start(CollectiveCall call, const void* in, void* out,
                     Lane& lane);
  // Keeps the first error and returns it.
  absl::Status Break(const absl::Status& error);

  const std::string group_;
  const std::vector<int> ranks_;
  const int channel_;
  int rank_ = 0;
  int64_t sequence_ = 0;
  std::atomic<bool> broken_ = false;
  mutable std::mutex mutex_;
  absl::Status error_;  // guarded by mutex_
};

// InvalidArgument unless `ranks` are distinct, in [0, world_size) and contain
// `world_rank`.
absl::Status CheckGroup(absl::string_view group, absl::Span<const int> ranks,
                        int world_rank, int world_size);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_COMMUNICATOR_BASE_H_
