#include "fsdp/checkpoint/snapshot.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace shardgraph {

constexpr int64_t kPage = 4096;

void Snapshot::Free::operator()(char* memory) const { std::free(memory); }

Snapshot::Snapshot(const TrainingPlan& plan) {
  int64_t end = 0;
  for (BufferId id : plan.SavedBuffers()) {
    const int64_t bytes = plan.plan.graph.buffers[id].bytes;
    places_[id] = {end, bytes};
    constexpr int64_t kAlignment = TrainingPlan::kSnapshotAlignment;
    end += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  SG_CHECK_EQ(end, plan.snapshot_bytes) << "what the plan counts";
  const int64_t size = (std::max<int64_t>(end, 1) + kPage - 1) / kPage * kPage;
  memory_.reset(static_cast<char*>(std::aligned_alloc(kPage, size)));
  SG_CHECK(memory_ != nullptr) << "no memory for a snapshot of " << size;
  // Touched here, not at the first save.
  std::memset(memory_.get(), 0, size);
}

absl::Status Snapshot::Take(BufferReader& executor) {
  for (const auto& [id, place] : places_) {
    SG_RETURN_IF_ERROR(
        executor.ReadBuffer(id, 0, memory_.get() + place.begin, place.bytes));
  }
  return absl::OkStatus();
}

absl::Status Snapshot::ReadBuffer(BufferId buffer, int64_t offset, void* host,
                                  int64_t bytes) {
  const auto it = places_.find(buffer);
  if (it == places_.end() || offset < 0 || bytes < 0 ||
      offset > it->second.bytes - bytes) {
    return absl::InternalError(
        absl::StrCat("bytes [", offset, ", ", offset + bytes, ") of buffer ",
                     buffer, " are not in the snapshot"));
  }
  std::memcpy(host, memory_.get() + it->second.begin + offset, bytes);
  return absl::OkStatus();
}

}  // namespace shardgraph
