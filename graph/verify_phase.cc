#include "graph/verify_phase.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "graph/byte_map.h"
#include "graph/region.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int kMaxVerifiedLanes = 4;
constexpr int32_t kNever = -1;

// Last node of each lane that did something, as a position in the total order.
using ByLane = std::array<int32_t, kMaxVerifiedLanes>;
constexpr ByLane kNoLane = {kNever, kNever, kNever, kNever};

// What happened to bytes of a buffer in this run.
struct Meaning {
  // All of it: persistent bytes are, from the start. Else what the results in
  // `versions` have put there.
  bool written = false;
  int32_t writer = kNever;
  ByLane readers = kNoLane;         // since the write
  ByLane latest_readers = kNoLane;  // of each lane the last in program order
  // Results that only a result tied to them may overwrite: of a phase-lifetime
  // buffer all of this run, of a persistent one those not read since.
  absl::InlinedVector<ValueId, 2> versions;
};

// Who holds bytes of the arena.
struct Tenancy {
  BufferId buffer = kNone;
  ByLane users = kNoLane;  // the last of each lane
};

// The elements of a value, counted from the start of its buffer.
Region RegionOf(const Value& value) {
  return Region(value.offset / SizeOf(value.type.dtype), value.type);
}

// Whether two values in one buffer may have an element in common: not when that
// is disproved.
bool MayOverlap(const Value& a, const Value& b) {
  const int64_t size = SizeOf(a.type.dtype);
  if (SizeOf(b.type.dtype) != size || a.offset % size != 0 ||
      b.offset % size != 0) {
    return true;
  }
  return !Disjoint(RegionOf(a), RegionOf(b));
}

class PhaseVerifier {
 public:
  PhaseVerifier(const StepPlan& plan, PhaseId phase, PaddingReads* padding)
      : graph_(plan.graph),
        offsets_(plan.memory.offsets),
        phase_(plan.graph.phases[phase]),
        schedule_(plan.schedules[phase]),
        lanes_(plan.num_lanes),
        meaning_(plan.graph.buffers.size()),
        padding_(padding) {}

  absl::Status Run() {
    FollowLanes();
    for (position_ = 0; position_ < size(); ++position_)
      SG_RETURN_IF_ERROR(VisitNode());
    return CheckOutputs();
  }

 private:
  int32_t size() const { return static_cast<int32_t>(schedule_.order.size()); }
  NodeId id(int32_t position) const { return schedule_.order[position]; }

  // For each node and lane: the last position of the lane that has finished
  // when the node starts.
  void FollowLanes() {
    std::vector<int32_t> position(graph_.nodes.size(), kNever);
    for (int32_t p = 0; p < size(); ++p) position[id(p)] = p;
    program_.resize(graph_.nodes.size());
    for (size_t i = 0; i < phase_.nodes.size(); ++i)
      program_[phase_.nodes[i]] = static_cast<int32_t>(i);

    std::vector<std::vector<int32_t>> waits(size());
    for (const Edge& edge : schedule_.edges)
      waits[position[edge.to]].push_back(position[edge.from]);
    finished_.assign(size(), kNoLane);
    ByLane last = kNoLane;
    for (int32_t p = 0; p < size(); ++p) {
      const auto join = [&](int32_t from) {
        for (int l = 0; l < lanes_; ++l)
          finished_[p][l] = std::max(finished_[p][l], finished_[from][l]);
        int32_t& own = finished_[p][schedule_.lanes[from]];
        own = std::max(own, from);
      };
      const int32_t lane = schedule_.lanes[p];
      if (last[lane] != kNever) join(last[lane]);
      for (int32_t from : waits[p]) join(from);
      last[lane] = p;
    }
  }

  bool HasFinished(int32_t before) const {
    return before == kNever ||
           finished_[position_][schedule_.lanes[before]] >= before;
  }

  std::string Bytes(BufferId buffer, int64_t begin, int64_t end) const {
    return absl::StrCat("bytes [", begin, ", ", end, ") of ",
                        graph_.buffers[buffer].name);
  }
  std::string NodeText(int32_t position) const {
    return absl::StrCat("\"", PrintNode(graph_, id(position)), "\"");
  }
  absl::Status Error(absl::string_view what) const {
    return absl::FailedPreconditionError(absl::StrCat(
        "phase ", phase_.name, ": ",
        position_ < size() ? NodeText(position_) : "the end", " ", what));
  }

  // `before` conflicts on these bytes and comes first in the total order: it
  // must have finished, and come first in the program.
  absl::Status CheckConflict(int32_t before, absl::string_view did,
                             BufferId buffer, int64_t begin, int64_t end) {
    if (before == kNever || before == position_) return absl::OkStatus();
    if (!HasFinished(before)) {
      return Error(absl::StrCat("is not ordered after ", NodeText(before),
                                ", which ", did, " ",
                                Bytes(buffer, begin, end)));
    }
    if (program_[id(before)] > program_[id(position_)]) {
      return Error(absl::StrCat("runs after ", NodeText(before), ", which ",
                                did, " ", Bytes(buffer, begin, end),
                                ": the program has them the other way round"));
    }
    return absl::OkStatus();
  }

  absl::Status VisitNode() {
    const Node& node = graph_.nodes[id(position_)];
    for (int i = 0; i < static_cast<int>(node.operands.size()); ++i)
      SG_RETURN_IF_ERROR(Read(node, i));
    for (ValueId operand : node.operands) {
      const Value& value = graph_.values[operand];
      SG_RETURN_IF_ERROR(
          Occupy(value.buffer, value.begin(), value.end(), /*keeps=*/true));
    }
    const int num_operands = static_cast<int>(node.operands.size());
    const int num_results = static_cast<int>(node.results.size());
    for (int r = 0; r < num_results; ++r) {
      const Value& value = graph_.values[node.results[r]];
      const bool tied = TiedOperand(*node.op, node.attributes, num_operands,
                                    num_results, r) >= 0;
      SG_RETURN_IF_ERROR(Write(value.buffer, value.begin(), value.end(),
                               node.results[r], tied));
    }
    if (node.workspace != kNone) {
      SG_RETURN_IF_ERROR(Write(node.workspace, 0,
                               graph_.buffers[node.workspace].bytes, kNone,
                               /*tied=*/false));
    }
    return absl::OkStatus();
  }

  Meaning InitialMeaning(BufferId buffer) const {
    Meaning initial;
    initial.written = graph_.buffers[buffer].lifetime != Lifetime::kPhase;
    return initial;
  }

  absl::Status Read(const Node& node, int operand) {
    const Value& value = graph_.values[node.operands[operand]];
    const BufferId buffer = value.buffer;
    absl::Status status;
    const int32_t lane = schedule_.lanes[position_];
    const int32_t program = program_[id(position_)];
    const bool persistent = graph_.buffers[buffer].lifetime != Lifetime::kPhase;
    ByteRanges unwritten;
    bool in_part = false;
    meaning_[buffer].ForEach(
        value.begin(), value.end(), InitialMeaning(buffer),
        [&](int64_t from, int64_t to, Meaning& state) {
          if (!status.ok()) return;
          if (!state.written) {
            unwritten.push_back({from, to});
            in_part |= !state.versions.empty();
          }
          status = CheckConflict(state.writer, "writes", buffer, from, to);
          state.readers[lane] = position_;
          int32_t& latest = state.latest_readers[lane];
          if (latest == kNever || program_[id(latest)] < program)
            latest = position_;
          if (persistent) state.versions.clear();
        });
    SG_RETURN_IF_ERROR(status);
    if (unwritten.empty() || (in_part && IsWrittenInParts(value)))
      return absl::OkStatus();
    if (!PassesPadding(*node.op)) {
      return Error(absl::StrCat(
          "reads ",
          Bytes(buffer, unwritten.front().first, unwritten.front().second),
          ", which nothing has written", in_part ? " in full" : ""));
    }
    // Whatever lies there is taken over unread.
    for (const auto& [from, to] : unwritten)
      SG_RETURN_IF_ERROR(Occupy(buffer, from, to, /*keeps=*/false));
    padding_->push_back({id(position_), operand, std::move(unwritten)});
    return absl::OkStatus();
  }

  // Whether every element is in some result, though not every byte of their
  // spans is.
  bool IsWrittenInParts(const Value& value) {
    const int64_t size = SizeOf(value.type.dtype);
    std::vector<Region> parts;
    std::vector<ValueId> versions;
    bool aligned = true;
    meaning_[value.buffer].ForEach(
        value.begin(), value.end(), InitialMeaning(value.buffer),
        [&](int64_t from, int64_t to, const Meaning& state) {
          aligned &= from % size == 0 && to % size == 0;
          if (state.written) {
            parts.push_back(Region::Range(from / size, to / size));
            return;
          }
          for (ValueId version : state.versions) {
            if (std::find(versions.begin(), versions.end(), version) ==
                versions.end()) {
              versions.push_back(version);
            }
          }
        });
    for (ValueId version : versions) {
      const Value& part = graph_.values[version];
      aligned &= SizeOf(part.type.dtype) == size && part.offset % size == 0;
      parts.push_back(RegionOf(part));
    }
    return aligned && Covers(parts, RegionOf(value));
  }

  // Of a result, or of a workspace (value kNone). `tied`: to an operand.
  absl::Status Write(BufferId buffer, int64_t begin, int64_t end, ValueId value,
                     bool tied) {
    absl::Status status;
    Meaning next;
    const bool strided =
        value != kNone && !graph_.values[value].type.contiguous();
    next.written = true;
    meaning_[buffer].ForEach(
        begin, end, InitialMeaning(buffer),
        [&](int64_t from, int64_t to, Meaning& state) {
          if (!status.ok()) return;
          if (strided) next.written &= state.written;
          status = CheckConflict(state.writer, "writes", buffer, from, to);
          for (int l = 0; l < lanes_ && status.ok(); ++l) {
            status = CheckConflict(state.readers[l], "reads", buffer, from, to);
            if (status.ok()) {
              status = CheckConflict(state.latest_readers[l], "reads", buffer,
                                     from, to);
            }
          }
          for (ValueId old : state.versions) {
            if (!status.ok() || value == kNone) break;
            const NodeId producer = graph_.values[old].producer;
            if (!tied && producer != id(position_) &&
                MayOverlap(graph_.values[old], graph_.values[value])) {
              status = Error(absl::StrCat(
                  "overwrites ", Bytes(buffer, from, to), ", which \"",
                  PrintNode(graph_, producer),
                  "\" wrote, and does not add to it: a contribution is lost, "
                  "accumulate is missing"));
            }
            if (strided && std::find(next.versions.begin(), next.versions.end(),
                                     old) == next.versions.end()) {
              next.versions.push_back(old);
            }
          }
        });
    SG_RETURN_IF_ERROR(status);
    next.writer = position_;
    if (value != kNone) next.versions.push_back(value);
    meaning_[buffer].Set(begin, end, std::move(next));
    SG_RETURN_IF_ERROR(Occupy(buffer, begin, end, /*keeps=*/false));
    // Everybody before has finished: the writer stands for all.
    Tenancy tenancy{buffer};
    tenancy.users[schedule_.lanes[position_]] = position_;
    arena_.Set(offsets_[buffer] + begin, offsets_[buffer] + end, tenancy);
    return absl::OkStatus();
  }

  // Makes the buffer hold its bytes of the arena. `keeps`: what it wrote there
  // must still be there.
  absl::Status Occupy(BufferId buffer, int64_t begin, int64_t end, bool keeps) {
    absl::Status status;
    const int64_t offset = offsets_[buffer];
    const int32_t lane = schedule_.lanes[position_];
    arena_.ForEach(
        offset + begin, offset + end, Tenancy{buffer},
        [&](int64_t from, int64_t to, Tenancy& state) {
          if (!status.ok()) return;
          if (state.buffer != buffer) {
            if (keeps) {
              status = Error(absl::StrCat(
                  "reads ", Bytes(buffer, from - offset, to - offset),
                  ", which lie in the arena at [", from, ", ", to,
                  ") and were given to ", graph_.buffers[state.buffer].name));
              return;
            }
            for (int l = 0; l < lanes_; ++l) {
              if (HasFinished(state.users[l])) continue;
              status = Error(absl::StrCat(
                  "takes ", Bytes(buffer, from - offset, to - offset),
                  " in the arena at [", from, ", ", to,
                  ") and is not ordered after ", NodeText(state.users[l]),
                  ", which uses them as ", graph_.buffers[state.buffer].name));
              return;
            }
            state = Tenancy{buffer};
          }
          state.users[lane] = position_;
        });
    return status;
  }

  // Named outputs must still be there for the host.
  absl::Status CheckOutputs() {
    std::vector<bool> written(graph_.buffers.size(), false);
    for (NodeId id : phase_.nodes) {
      for (ValueId result : graph_.nodes[id].results)
        written[graph_.values[result].buffer] = true;
    }
    for (const auto& [name, output] : graph_.outputs) {
      const Value& value = graph_.values[output];
      if (!written[value.buffer]) continue;
      const int64_t offset = offsets_[value.buffer];
      absl::Status status;
      arena_.ForEach(offset + value.begin(), offset + value.end(),
                     Tenancy{value.buffer},
                     [&, name = name](int64_t from, int64_t to,
                                      const Tenancy& state) {
                       if (!status.ok() || state.buffer == value.buffer) return;
                       status = Error(absl::StrCat(
                           "of the phase: output ", name, " has lost ",
                           Bytes(value.buffer, from - offset, to - offset),
                           " to ", graph_.buffers[state.buffer].name));
                     });
      SG_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  const std::vector<int64_t>& offsets_;
  const Phase& phase_;
  const PhaseSchedule& schedule_;
  const int lanes_;

  std::vector<int32_t> program_;           // by node: index in the program
  std::vector<ByLane> finished_;           // by position
  std::vector<ByteMap<Meaning>> meaning_;  // by buffer
  ByteMap<Tenancy> arena_;
  PaddingReads* const padding_;
  int32_t position_ = 0;
};

}  // namespace

absl::Status VerifyPhase(const StepPlan& plan, PhaseId phase,
                         PaddingReads* padding) {
  return PhaseVerifier(plan, phase, padding).Run();
}

}  // namespace shardgraph
