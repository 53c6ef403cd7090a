#include "fsdp/checkpoint/snapshot.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "fsdp/files/durable_file.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace shardgraph {

// A page of the larger kind.
constexpr int64_t kLargePage = 2 << 20;

void Snapshot::Free::operator()(char* memory) const { std::free(memory); }

Snapshot::Snapshot(const TrainingPlan& plan, int shard)
    : files_(plan, shard), state_buffer_(plan.state) {
  int64_t size = 0;
  for (const ShardFiles::File& file : files_.files()) {
    begins_.push_back(size);
    size += (file.data_bytes + DurableFile::kPage - 1) / DurableFile::kPage *
            DurableFile::kPage;
    sums_.emplace_back(file.pieces.size());
  }
  SG_CHECK_LE(size, plan.snapshot_bytes) << "what the plan counts";
  if (size == 0) return;  // holds no piece of anything
  void* memory = nullptr;
  SG_CHECK_EQ(posix_memalign(&memory, kLargePage, size), 0)
      << "no memory for a snapshot of " << size << " bytes";
  memory_.reset(static_cast<char*>(memory));
  madvise(memory, size, MADV_HUGEPAGE);
  // Touched here, not at the first save.
  std::memset(memory, 0, size);
}

absl::Status Snapshot::Take(BufferReader& executor) {
  SG_RETURN_IF_ERROR(
      executor.ReadBuffer(state_buffer_, 0, &state_, sizeof(state_)));
  for (size_t i = 0; i < files_.files().size(); ++i) {
    char* to = memory_.get() + begins_[i];
    const std::vector<ShardFiles::Piece>& pieces = files_.files()[i].pieces;
    for (size_t p = 0; p < pieces.size(); ++p) {
      SG_ASSIGN_OR_RETURN(sums_[i][p], files_.Read(pieces[p], executor, to,
                                                   [](absl::string_view) {
                                                     return absl::OkStatus();
                                                   }));
      to += pieces[p].elements * SizeOf(DType::kF32);
    }
  }
  return absl::OkStatus();
}

absl::string_view Snapshot::Data(size_t i) const {
  return {memory_.get() + begins_[i],
          static_cast<size_t>(files_.files()[i].data_bytes)};
}

}  // namespace shardgraph
