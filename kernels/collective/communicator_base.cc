#include "kernels/collective/communicator_base.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "kernels/collective/reduction.h"

namespace shardgraph {

absl::string_view CollectiveName(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
  }
  return "unknown";
}

int64_t CollectiveCall::in_bytes(int size) const {
  const bool pieces = collective == Collective::kReduceScatter ||
                      collective == Collective::kAllToAll;
  return (pieces ? size : 1) * count * SizeOf(element());
}

int64_t CollectiveCall::out_bytes(int size) const {
  const bool pieces = collective == Collective::kAllGather ||
                      collective == Collective::kAllToAll;
  return (pieces ? size : 1) * count * SizeOf(element());
}

std::string CollectiveCall::ToString() const {
  std::string text = absl::StrCat(CollectiveName(collective), " #", sequence);
  if (collective == Collective::kBarrier) return text;
  absl::StrAppend(&text, " (", DTypeName(element()), " x ", count);
  if (collective == Collective::kAllReduce) {
    absl::StrAppend(&text, reduce_op() == ReduceOp::kSum ? ", sum" : ", max");
  }
  if (collective == Collective::kBroadcast) {
    absl::StrAppend(&text, ", root ", root);
  }
  return text + ")";
}

CommunicatorBase::CommunicatorBase(absl::string_view group,
                                   absl::Span<const int> ranks, int world_rank,
                                   int channel)
    : group_(group), ranks_(ranks.begin(), ranks.end()), channel_(channel) {
  const auto self = std::find(ranks_.begin(), ranks_.end(), world_rank);
  SG_CHECK(self != ranks_.end()) << "group " << group_;
  rank_ = static_cast<int>(self - ranks_.begin());
}

absl::Status CommunicatorBase::AllGather(const void* shard, void* full,
                                         int64_t count, DType dtype,
                                         Lane& lane) {
  return Start({.collective = Collective::kAllGather,
                .dtype = static_cast<int32_t>(dtype),
                .count = count},
               shard, full, lane);
}

absl::Status CommunicatorBase::ReduceScatter(const void* full, void* shard,
                                             int64_t count, DType dtype,
                                             Lane& lane) {
  return Start({.collective = Collective::kReduceScatter,
                .dtype = static_cast<int32_t>(dtype),
                .count = count},
               full, shard, lane);
}

absl::Status CommunicatorBase::AllReduce(void* data, int64_t count, DType dtype,
                                         ReduceOp op, Lane& lane) {
  return Start({.collective = Collective::kAllReduce,
                .dtype = static_cast<int32_t>(dtype),
                .op = static_cast<int32_t>(op),
                .count = count},
               data, data, lane);
}

absl::Status CommunicatorBase::AllToAll(const void* send, void* receive,
                                        int64_t count, DType dtype,
                                        Lane& lane) {
  return Start({.collective = Collective::kAllToAll,
                .dtype = static_cast<int32_t>(dtype),
                .count = count},
               send, receive, lane);
}

absl::Status CommunicatorBase::Broadcast(void* data, int64_t count, DType dtype,
                                         int root, Lane& lane) {
  return Start({.collective = Collective::kBroadcast,
                .dtype = static_cast<int32_t>(dtype),
                .root = root,
                .count = count},
               data, data, lane);
}

absl::Status CommunicatorBase::Barrier(Lane& lane) {
  return Start({.collective = Collective::kBarrier}, nullptr, nullptr, lane);
}

absl::Status CommunicatorBase::Start(CollectiveCall call, const void* in,
                                     void* out, Lane& lane) {
  if (broken_.load(std::memory_order_acquire)) return first_error();
  call.sequence = ++sequence_;
  if (call.count < 0) {
    return Break(absl::InvalidArgumentError(
        absl::StrCat(Describe(call), ": the count is negative")));
  }
  const bool floating = call.collective == Collective::kReduceScatter;
  const bool reduces = floating || call.collective == Collective::kAllReduce;
  if (reduces && (!IsReducible(call.element()) ||
                  (floating && !IsFloating(call.element())))) {
    return Break(absl::InvalidArgumentError(absl::StrCat(
        Describe(call), ": cannot reduce ", DTypeName(call.element()),
        "; allowed are F32 and F64", floating ? "" : ", I32 and I64")));
  }
  if (call.root < 0 || call.root >= size()) {
    return Break(absl::InvalidArgumentError(
        absl::StrCat(Describe(call), ": root ", call.root,
                     " is not a rank of a group of ", size())));
  }
  absl::Status status = Run(call, in, out, lane);
  if (!status.ok()) [[unlikely]] {
    return Break(status);
  }
  return status;
}

void CommunicatorBase::Abort(const absl::Status& reason) {
  const absl::Status error(
      reason.ok() ? absl::StatusCode::kAborted : reason.code(),
      absl::StrCat("group '", group_, "', channel ", channel_,
                   " was aborted on rank ", ranks_[rank_], ": ",
                   reason.message()));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_.ok()) return;
    error_ = error;
    broken_.store(true, std::memory_order_release);
  }
  OnAbort(error);
}

absl::Status CommunicatorBase::Break(const absl::Status& error) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_.ok()) error_ = error;
  broken_.store(true, std::memory_order_release);
  return error_;
}

absl::Status CommunicatorBase::first_error() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

std::string CommunicatorBase::Describe(const CollectiveCall& call) const {
  return absl::StrCat(call.ToString(), " of group '", group_, "', channel ",
                      channel_);
}

absl::Status CheckGroup(absl::string_view group, absl::Span<const int> ranks,
                        int world_rank, int world_size) {
  const std::set<int> distinct(ranks.begin(), ranks.end());
  if (distinct.size() == ranks.size() && distinct.count(world_rank) == 1 &&
      *distinct.begin() >= 0 && *distinct.rbegin() < world_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "group '", group, "' on rank ", world_rank, " has ranks [",
      absl::StrJoin(ranks, ", "), "]: they must be distinct, within [0, ",
      world_size, ") and contain this rank"));
}

}  // namespace shardgraph
