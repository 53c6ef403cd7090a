#include "kernels/collective/peer_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/collective/reduction.h"
#include "kernels/status_macros.h"

namespace shardgraph {

PeerMemoryCommunicator::PeerMemoryCommunicator(absl::string_view group,
                                               absl::Span<const int> ranks,
                                               int world_rank, int channel)
    : CommunicatorBase(group, ranks, world_rank, channel),
      peers_(ranks.size()),
      sources_(ranks.size()),
      destinations_(ranks.size()) {}

absl::Status PeerMemoryCommunicator::Run(const CollectiveCall& call,
                                         const void* in, void* out,
                                         Lane& lane) {
  SG_RETURN_IF_ERROR(Meet(call, in, out, peers_));
  SG_RETURN_IF_ERROR(CheckAgreement(call));
  if (call.collective != Collective::kBarrier && call.count > 0) {
    // Every rank decides the same way, because all see the same peers.
    bool direct = true;
    for (int r = 0; r < size(); ++r) {
      const bool read =
          call.collective != Collective::kBroadcast || r == call.root;
      const bool written = call.collective == Collective::kAllReduce;
      if ((read && peers_[r].in == nullptr) ||
          (written && peers_[r].out == nullptr)) {
        direct = false;
      }
    }
    const char* from = static_cast<const char*>(in);
    char* to = static_cast<char*>(out);
    SG_RETURN_IF_ERROR(direct ? Move(call, from, to, lane)
                              : MoveStaged(call, from, to, lane));
  }
  // Nobody leaves, and thus changes a buffer, while another one still reads.
  return Sync(call);
}

absl::Status PeerMemoryCommunicator::CheckAgreement(
    const CollectiveCall& call) const {
  for (int r = 1; r < size(); ++r) {
    if (peers_[r].call == peers_[0].call) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(call), ": the ranks do not agree: rank ", ranks()[0],
        " called ", peers_[0].call.ToString(), ", rank ", ranks()[r],
        " called ", peers_[r].call.ToString()));
  }
  return absl::OkStatus();
}

absl::Status PeerMemoryCommunicator::Move(const CollectiveCall& call,
                                          const char* in, char* out,
                                          Lane& lane) {
  const int64_t piece = call.count * SizeOf(call.element());
  switch (call.collective) {
    case Collective::kAllGather:
      // Each rank starts at its neighbour, so that not all read from one.
      for (int i = 0; i < size(); ++i) {
        const int s = (rank() + i) % size();
        CopyBytes(s == rank() ? in : peers_[s].in, out + s * piece, piece,
                  lane);
      }
      break;
    case Collective::kAllToAll:
      for (int i = 0; i < size(); ++i) {
        const int s = (rank() + i) % size();
        CopyBytes((s == rank() ? in : peers_[s].in) + rank() * piece,
                  out + s * piece, piece, lane);
      }
      break;
    case Collective::kReduceScatter: {
      for (int s = 0; s < size(); ++s) {
        sources_[s] = (s == rank() ? in : peers_[s].in) + rank() * piece;
      }
      void* shard = out;
      ReduceInRankOrder(sources_, absl::MakeConstSpan(&shard, 1), call.count,
                        call.element(), ReduceOp::kSum, lane);
      break;
    }
    case Collective::kAllReduce: {
      // This rank sums one part for everybody: disjoint parts, so in place.
      const int64_t begin = call.count * rank() / size();
      const int64_t end = call.count * (rank() + 1) / size();
      const int64_t offset = begin * SizeOf(call.element());
      for (int s = 0; s < size(); ++s) {
        sources_[s] = (s == rank() ? in : peers_[s].in) + offset;
        destinations_[s] = (s == rank() ? out : peers_[s].out) + offset;
      }
      ReduceInRankOrder(sources_, destinations_, end - begin, call.element(),
                        call.reduce_op(), lane);
      break;
    }
    case Collective::kBroadcast:
      if (rank() != call.root) {
        CopyBytes(peers_[call.root].in, out, piece, lane);
      }
      break;
    case Collective::kBarrier:
      break;
  }
  return absl::OkStatus();
}

absl::Status PeerMemoryCommunicator::MoveStaged(const CollectiveCall& call,
                                                const char* in, char* out,
                                                Lane& lane) {
  const int64_t element = SizeOf(call.element());
  const int64_t piece = call.count * element;
  // All-to-all and reduce-scatter stage a part of every piece, the others a
  // part of the one piece there is.
  const bool scatters = call.collective == Collective::kReduceScatter ||
                        call.collective == Collective::kAllToAll;
  const int pieces = scatters ? size() : 1;
  const int64_t chunk = staging_bytes() / pieces / element * element;
  SG_CHECK(chunk > 0) << "staging of " << staging_bytes() << " bytes";
  const bool sends =
      call.collective != Collective::kBroadcast || rank() == call.root;
  int half = 0;
  for (int64_t begin = 0; begin < piece; begin += chunk) {
    const int64_t bytes = std::min(chunk, piece - begin);
    char* mine = staging(rank(), half);
    for (int p = 0; sends && p < pieces; ++p) {
      CopyBytes(in + p * piece + begin, mine + p * chunk, bytes, lane);
    }
    // One meeting a chunk: this half is written again only after the meeting
    // for the other one, which comes after everybody's reads of this one.
    SG_RETURN_IF_ERROR(Sync(call));
    switch (call.collective) {
      case Collective::kAllGather:
      case Collective::kAllToAll: {
        const int64_t offset = scatters ? rank() * chunk : 0;
        for (int i = 0; i < size(); ++i) {
          const int s = (rank() + i) % size();
          CopyBytes(staging(s, half) + offset, out + s * piece + begin, bytes,
                    lane);
        }
        break;
      }
      case Collective::kReduceScatter:
      case Collective::kAllReduce: {
        const int64_t offset = scatters ? rank() * chunk : 0;
        for (int s = 0; s < size(); ++s) {
          sources_[s] = staging(s, half) + offset;
        }
        void* sum = out + begin;
        ReduceInRankOrder(sources_, absl::MakeConstSpan(&sum, 1),
                          bytes / element, call.element(), call.reduce_op(),
                          lane);
        break;
      }
      case Collective::kBroadcast:
        if (!sends) {
          CopyBytes(staging(call.root, half), out + begin, bytes, lane);
        }
        break;
      case Collective::kBarrier:
        break;
    }
    half = 1 - half;
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
