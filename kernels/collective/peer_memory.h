// PeerMemoryCommunicator: collectives among ranks that can read each other's
// memory, wholly (threads) or in part (a shared window).
//
// Every rank pulls what it needs straight from the others' buffers and sums in
// rank order. Where a buffer of some rank cannot be read, all ranks copy it in
// chunks through their staging areas instead. A transport provides the meeting
// points and says which memory can be read.
#ifndef KERNELS_COLLECTIVE_PEER_MEMORY_H_
#define KERNELS_COLLECTIVE_PEER_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/collective/communicator_base.h"
#include "kernels/lane.h"

namespace shardgraph {

class PeerMemoryCommunicator : public CommunicatorBase {
 public:
  PeerMemoryCommunicator(absl::string_view group, absl::Span<const int> ranks,
                         int world_rank, int channel);

 protected:
  // What another rank of the group has published at the last Meet.
  struct Peer {
    CollectiveCall call;
    const char* in = nullptr;  // null: cannot be read from here
    char* out = nullptr;       // null: cannot be written from here
  };

  // Publishes this rank's call and buffers, waits for all others and fills
  // `peers`, this rank included. Whether a buffer can be read is the same seen
  // from every rank.
  virtual absl::Status Meet(const CollectiveCall& call, const void* in,
                            void* out, std::vector<Peer>& peers) = 0;
  // Waits until every rank has come here too; what they wrote before is then
  // visible. `call` is for messages.
  virtual absl::Status Sync(const CollectiveCall& call) = 0;
  // Half 0 or 1 of the staging area of a rank of this group; null when no
  // buffer ever needs it.
  virtual char* staging(int rank, int half) = 0;
  virtual int64_t staging_bytes() const = 0;  // of one half

  absl::Status Run(const CollectiveCall& call, const void* in, void* out,
                   Lane& lane) final;

 private:
  absl::Status CheckAgreement(const CollectiveCall& call) const;
  absl::Status Move(const CollectiveCall& call, const char* in, char* out,
                    Lane& lane);
  absl::Status MoveStaged(const CollectiveCall& call, const char* in, char* out,
                          Lane& lane);

  std::vector<Peer> peers_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_PEER_MEMORY_H_
