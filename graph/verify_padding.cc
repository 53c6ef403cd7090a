#include "graph/verify_padding.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// Sorted and disjoint.
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

void AddAll(const Ranges& more, Ranges* ranges) {
  if (more.empty()) return;
  ranges->insert(ranges->end(), more.begin(), more.end());
  std::sort(ranges->begin(), ranges->end());
  size_t last = 0;
  for (size_t i = 1; i < ranges->size(); ++i) {
    auto& [begin, end] = (*ranges)[last];
    if ((*ranges)[i].first <= end) {
      end = std::max(end, (*ranges)[i].second);
    } else {
      (*ranges)[++last] = (*ranges)[i];
    }
  }
  ranges->resize(last + 1);
}

// What of a value may be padding, in elements.
struct Padding {
  Ranges everywhere;  // of the value, on every rank
  int64_t ranks = 0;  // of the group that the value is a shard over, if `whole`
  Ranges whole;       // of the shards of all ranks one after another
  // What is said is of the value before so many ranks exchanged pieces of it...
  int64_t exchanged = 0;
  // ... or of that of which this is one of so many pieces, added up.
  int64_t pieces = 0;
  NodeId source = kNone;  // what let it in

  friend bool operator==(const Padding& a, const Padding& b) {
    return a.everywhere == b.everywhere && a.ranks == b.ranks &&
           a.whole == b.whole && a.exchanged == b.exchanged &&
           a.pieces == b.pieces;
  }
  bool empty() const { return everywhere.empty() && whole.empty(); }
};

// Where a value lies.
struct Place {
  BufferId buffer = kNone;
  int64_t begin = 0;
  int64_t end = 0;

  friend auto operator<=>(const Place&, const Place&) = default;
};

class PaddingVerifier {
 public:
  PaddingVerifier(const Graph& graph, const PaddingReads& reads)
      : graph_(graph) {
    for (const PaddingRead& read : reads) reads_[read.node].push_back(&read);
  }

  absl::Status Run() {
    // Padding of a persistent buffer may reach phases that come first.
    std::map<Place, Padding> before;
    do {
      before = padding_;
      for (const Phase& phase : graph_.phases)
        SG_RETURN_IF_ERROR(VisitPhase(phase));
    } while (padding_ != before);
    for (const auto& [name, id] : graph_.outputs) {
      const Value& value = graph_.values[id];
      for (const auto& [place, padding] : padding_) {
        if (Overlap(place, value)) {
          return absl::FailedPreconditionError(absl::StrCat(
              "output ", name, " has elements that ", NodeText(padding.source),
              " took from bytes that nothing has written"));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  static Place PlaceOf(const Value& value) {
    return {value.buffer, value.begin(), value.end()};
  }
  static bool Overlap(const Place& place, const Value& value) {
    return place.buffer == value.buffer && place.begin < value.end() &&
           value.begin() < place.end;
  }
  // Places sort by buffer and begin.
  std::map<Place, Padding>::iterator FirstOf(BufferId buffer) {
    return padding_.lower_bound(Place{buffer, 0, 0});
  }

  std::string NodeText(NodeId id) const {
    return absl::StrCat("\"", PrintNode(graph_, id), "\"");
  }
  absl::Status Error(const std::string& what) const {
    const Node& node = graph_.nodes[id_];
    return absl::FailedPreconditionError(
        absl::StrCat("phase ", graph_.phases[node.phase].name, ": ",
                     NodeText(id_), " ", what));
  }

  absl::Status VisitPhase(const Phase& phase) {
    for (NodeId id : phase.nodes) {
      id_ = id;
      SG_RETURN_IF_ERROR(VisitNode(graph_.nodes[id]));
    }
    // What lives for the phase ends here.
    for (auto it = padding_.begin(); it != padding_.end();) {
      const bool ends =
          graph_.buffers[it->first.buffer].lifetime == Lifetime::kPhase;
      it = ends ? padding_.erase(it) : std::next(it);
    }
    return absl::OkStatus();
  }

  absl::Status VisitNode(const Node& node) {
    Padding passed;
    for (int i = 0; i < static_cast<int>(node.operands.size()); ++i) {
      Padding padding;
      SG_RETURN_IF_ERROR(PaddingOf(node, i, &padding));
      if (padding.empty()) continue;
      if (PassesPadding(*node.op)) {
        SG_RETURN_IF_ERROR(Pass(node, i, padding, &passed));
      } else {
        SG_RETURN_IF_ERROR(CheckReader(node, i, padding));
      }
    }
    for (ValueId result : node.results) Write(graph_.values[result]);
    if (passed.empty()) return absl::OkStatus();
    const Value& result = graph_.values[node.results[0]];
    const Buffer& buffer = graph_.buffers[result.buffer];
    if (buffer.lifetime == Lifetime::kRun) {
      return Error(absl::StrCat("puts what ", NodeText(passed.source),
                                " read though nothing has written it into ",
                                buffer.name, ", which is kept"));
    }
    padding_[PlaceOf(result)] = std::move(passed);
    return absl::OkStatus();
  }

  // A result replaces what padding there was: what is left of it in place is
  // passed on by the operand. Of a step-lifetime buffer another phase, or
  // another run of this one, may have left it: it stays.
  void Write(const Value& value) {
    if (graph_.buffers[value.buffer].lifetime != Lifetime::kPhase) return;
    for (auto it = FirstOf(value.buffer);
         it != padding_.end() && it->first.buffer == value.buffer;) {
      const bool covered = value.begin() <= it->first.begin &&
                           it->first.end <= value.end() &&
                           value.type.contiguous();
      it = covered ? padding_.erase(it) : std::next(it);
    }
  }

  // Of an operand: what it holds, and what nothing has written.
  absl::Status PaddingOf(const Node& node, int operand, Padding* padding) {
    const Value& value = graph_.values[node.operands[operand]];
    for (auto it = FirstOf(value.buffer);
         it != padding_.end() && it->first.buffer == value.buffer; ++it) {
      if (!Overlap(it->first, value)) continue;
      if (it->first != PlaceOf(value)) {
        return Error(
            absl::StrCat("reads a part of ", graph_.buffers[value.buffer].name,
                         ", which has padding that cannot be followed there"));
      }
      *padding = it->second;
    }
    const auto found = reads_.find(id_);
    if (found == reads_.end()) return absl::OkStatus();
    const int64_t size = SizeOf(value.type.dtype);
    for (const PaddingRead* read : found->second) {
      if (read->operand != operand) continue;
      Ranges elements;
      for (const auto& [begin, end] : read->bytes) {
        elements.push_back({(begin - value.offset) / size,
                            (end - value.offset + size - 1) / size});
      }
      AddAll(elements, &padding->everywhere);
      padding->source = id_;
    }
    return absl::OkStatus();
  }

  absl::Status Pass(const Node& node, int operand, Padding& padding,
                    Padding* passed) {
    const TensorType& from = graph_.values[node.operands[operand]].type;
    const TensorType& to = graph_.values[node.results[0]].type;
    const int64_t size = node.attributes.Int("size");
    if ((padding.exchanged != 0) != (node.op->name == "sum_pieces") ||
        (padding.pieces != 0 && node.op->name != "all_gather")) {
      return Error("reads a part of what has padding, out of its place");
    }
    if (node.op->name == "reduce_scatter") {
      // Element i of rank r's result comes from r * n + i of everybody's.
      if (!padding.whole.empty()) {
        return Error(
            "scatters a shard that has padding, which cannot be followed");
      }
      padding.ranks = size;
      padding.whole.swap(padding.everywhere);
    } else if (node.op->name == "all_to_all") {
      if (!padding.whole.empty() && !padding.everywhere.empty())
        return Error("exchanges padding of two kinds");
      padding.exchanged = size;
    } else if (node.op->name == "sum_pieces") {
      if (padding.exchanged != size)
        return Error("adds up pieces that are not one of each rank");
      padding.exchanged = 0;
      if (padding.whole.empty()) {  // as reduce_scatter
        padding.ranks = size;
        padding.whole.swap(padding.everywhere);
      } else {
        padding.pieces = size;
      }
    } else if (node.op->name == "all_gather") {
      if (padding.pieces == size) {
        padding.pieces = 0;
      } else if (padding.pieces == 0 && padding.ranks == size &&
                 padding.everywhere.empty()) {
        padding.ranks = 0;
        padding.everywhere.swap(padding.whole);
      } else {
        return Error("gathers shards that have padding, not of its group");
      }
    } else if (from.num_elements() != to.num_elements()) {
      // The micro-batch's number, for one.
      return Error(absl::StrCat("reads operand ", operand,
                                ", which nothing has written, as data"));
    }
    if (passed->ranks != 0 && padding.ranks != 0 &&
        passed->ranks != padding.ranks) {
      return Error("adds up shards over different groups that have padding");
    }
    passed->ranks = std::max(passed->ranks, padding.ranks);
    passed->exchanged = std::max(passed->exchanged, padding.exchanged);
    passed->pieces = std::max(passed->pieces, padding.pieces);
    AddAll(padding.everywhere, &passed->everywhere);
    AddAll(padding.whole, &passed->whole);
    passed->source = padding.source;
    return absl::OkStatus();
  }

  // An op that reads only the elements of its segments, if any.
  absl::Status CheckReader(const Node& node, int operand,
                           const Padding& padding) {
    const Value& value = graph_.values[node.operands[operand]];
    const std::string name = graph_.buffers[value.buffer].name;
    const int64_t n = value.type.num_elements();
    const Group* group =
        graph_.FindGroup(node.attributes.String(kGroupAttribute));
    if (!node.attributes.Has("segments") || group == nullptr ||
        padding.exchanged != 0 || padding.pieces != 0 ||
        n != graph_.values[node.operands[0]].type.num_elements()) {
      return Error(absl::StrCat("reads all of ", name,
                                ", some of which nothing has written: ",
                                NodeText(padding.source), " let it in"));
    }
    if (!padding.whole.empty() && padding.ranks != group->size) {
      return Error(absl::StrCat("reads ", name, " as a shard over ",
                                group->size, " ranks, it is one over ",
                                padding.ranks));
    }
    const std::vector<int64_t>& segments = node.attributes.Ints("segments");
    for (size_t i = 0; i + 2 < segments.size(); i += 3) {
      const int64_t begin = segments[i], end = segments[i + 1];
      bool hit = std::any_of(
          padding.whole.begin(), padding.whole.end(),
          [&](const auto& p) { return p.first < end && begin < p.second; });
      for (const auto& [first, last] : padding.everywhere) {
        if (n == 0 || begin >= end) break;
        // The ranks that the segment reaches into.
        for (int64_t r = begin / n; !hit && r <= (end - 1) / n; ++r)
          hit = r * n + first < end && begin < r * n + last;
      }
      if (hit) {
        return Error(absl::StrCat(
            "reads elements [", begin, ", ", end, ") of the whole that ", name,
            " is a shard of, a gradient that nothing has contributed to, at "
            "least in part: ",
            NodeText(padding.source), " let it in"));
      }
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  std::map<NodeId, std::vector<const PaddingRead*>> reads_;
  std::map<Place, Padding> padding_;
  NodeId id_ = kNone;  // being visited
};

}  // namespace

bool PassesPadding(const OpDef& op) {
  constexpr absl::string_view kOps[] = {
      "reduce_scatter", "all_reduce", "accumulate", "cast",
      "all_to_all",     "sum_pieces", "all_gather"};
  return std::find(std::begin(kOps), std::end(kOps), op.name) != std::end(kOps);
}

absl::Status VerifyPadding(const Graph& graph, const PaddingReads& reads) {
  if (reads.empty()) return absl::OkStatus();
  return PaddingVerifier(graph, reads).Run();
}

}  // namespace shardgraph
