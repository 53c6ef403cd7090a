#include "graph/verify_reductions.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr char kWorld[] = "world";

bool SameRanks(const Group& a, const Group& b) {
  return a.size == b.size && (a.stride == b.stride || a.size == 1);
}

// Whether the groups are the axes of a mesh of all ranks.
bool MakeUp(std::vector<const Group*> groups, const Group& world) {
  std::sort(groups.begin(), groups.end(), [](const Group* a, const Group* b) {
    return a->stride < b->stride;
  });
  int64_t ranks = 1;
  for (const Group* group : groups) {
    if (group->size == 1) continue;
    if (group->stride != ranks * world.stride) return false;
    ranks *= group->size;
  }
  return ranks == world.size;
}

std::string Names(const std::vector<const Group*>& groups) {
  if (groups.empty()) return "no group";
  return absl::StrCat(
      "the groups ",
      absl::StrJoin(groups, ", ", [](std::string* out, const Group* group) {
        absl::StrAppend(out, group->name);
      }));
}

class ReductionVerifier {
 public:
  explicit ReductionVerifier(const Graph& graph)
      : graph_(graph), world_(graph.FindGroup(kWorld)) {}

  absl::Status Run() {
    // What a step-lifetime buffer holds may come from a phase further down.
    SG_RETURN_IF_ERROR(VisitPhases());
    checks_ = true;
    return VisitPhases();
  }

 private:
  absl::Status VisitPhases() {
    for (const Phase& phase : graph_.phases) {
      for (NodeId id : phase.nodes) {
        const absl::Status status = Visit(graph_.nodes[id]);
        if (!status.ok()) {
          return absl::FailedPreconditionError(
              absl::StrCat("phase ", phase.name, ": \"", PrintNode(graph_, id),
                           "\" ", status.message()));
        }
      }
      sums_.erase(std::remove_if(sums_.begin(), sums_.end(),
                                 [&](const Sum& sum) {
                                   return graph_.buffers[sum.buffer].lifetime !=
                                          Lifetime::kStep;
                                 }),
                  sums_.end());
    }
    return absl::OkStatus();
  }

  // What some bytes are.
  struct Sum {
    BufferId buffer = kNone;
    int64_t begin = 0;
    int64_t end = 0;
    std::vector<const Group*> over;    // summed over these
    const Group* share_of = nullptr;   // the squares of one shard of this group
    const Group* pieces_of = nullptr;  // one piece of each rank, to be added up
    bool accumulated = false;          // over micro-batches
  };

  bool Overlaps(const Sum& sum, const Value& value) const {
    return sum.buffer == value.buffer && sum.begin < value.end() &&
           value.begin() < sum.end;
  }

  absl::Status Visit(const Node& node) {
    const Group* const group =
        graph_.FindGroup(node.attributes.String(kGroupAttribute));
    std::vector<Sum> made;
    if (group != nullptr &&
        (node.op->name == "reduce_scatter" || node.op->name == "all_reduce")) {
      SG_RETURN_IF_ERROR(Reduce(node, *group, &made));
    } else if (node.op->name == "cast" || node.op->name == "all_gather" ||
               node.op->name == "all_to_all" || node.op->name == "sum_pieces") {
      SG_RETURN_IF_ERROR(Pass(node, group, &made));
    } else if (node.op->name == "sum_of_squares" && group != nullptr) {
      SG_RETURN_IF_ERROR(CheckGradient(graph_.values[node.operands[0]]));
      made.push_back(SumOf(node.results[0]));
      made.back().share_of = group;
    } else if (node.attributes.Has("segments") && node.operands.size() > 1) {
      SG_RETURN_IF_ERROR(CheckGradient(graph_.values[node.operands[1]]));
    } else if (node.op->name == "finish_gradients") {
      SG_RETURN_IF_ERROR(CheckNorm(graph_.values[node.operands[0]]));
    } else if (node.op->name == "accumulate") {
      SG_RETURN_IF_ERROR(Accumulate(node, &made));
    } else if (node.op->name == "fill" && world_ != nullptr &&
               graph_.buffer_of(node.results[0]).kind ==
                   MemoryKind::kGradientShard &&
               node.attributes.Double("value") == 0) {
      made.push_back(Zeros(node));
    }
    SG_RETURN_IF_ERROR(CheckShardIsKept(node, made));
    for (ValueId id : node.results) {
      const Value& value = graph_.values[id];
      sums_.erase(
          std::remove_if(sums_.begin(), sums_.end(),
                         [&](const Sum& sum) { return Overlaps(sum, value); }),
          sums_.end());
    }
    sums_.insert(sums_.end(), made.begin(), made.end());
    return absl::OkStatus();
  }

  Sum SumOf(ValueId id) const {
    const Value& value = graph_.values[id];
    Sum sum;
    sum.buffer = value.buffer;
    sum.begin = value.begin();
    sum.end = value.end();
    return sum;
  }

  // The sum of zeros of all ranks and micro-batches, unless they take the place
  // of another.
  Sum Zeros(const Node& node) const {
    Sum zeros = SumOf(node.results[0]);
    zeros.over = {world_};
    zeros.accumulated =
        std::all_of(sums_.begin(), sums_.end(), [&](const Sum& sum) {
          return !Overlaps(sum, graph_.values[node.results[0]]) ||
                 sum.over == zeros.over;
        });
    return zeros;
  }

  absl::Status Reduce(const Node& node, const Group& group,
                      std::vector<Sum>* made) {
    const Value& operand = graph_.values[node.operands[0]];
    const Buffer& buffer = graph_.buffers[operand.buffer];
    if (world_ != nullptr && buffer.kind == MemoryKind::kState &&
        buffer.lifetime == Lifetime::kRun && !SameRanks(group, *world_)) {
      return absl::FailedPreconditionError(
          "sums the step's state over some ranks only");
    }
    Sum result = SumOf(node.results[0]);
    for (const Sum& sum : sums_) {
      if (!Overlaps(sum, operand)) continue;
      if (sum.share_of != nullptr && !SameRanks(*sum.share_of, group)) {
        return absl::FailedPreconditionError(
            absl::StrCat("sums squares of a shard of the group ",
                         sum.share_of->name, " over another"));
      }
      result.accumulated |= sum.accumulated;
      for (const Group* other : sum.over) {
        if (std::find(result.over.begin(), result.over.end(), other) ==
            result.over.end()) {
          result.over.push_back(other);
        }
      }
    }
    result.over.push_back(&group);
    made->push_back(std::move(result));
    return absl::OkStatus();
  }

  // What is a sum stays one where it is rounded, made whole or exchanged.
  absl::Status Pass(const Node& node, const Group* group,
                    std::vector<Sum>* made) {
    const Value& operand = graph_.values[node.operands[0]];
    for (const Sum& sum : sums_) {
      if (!Overlaps(sum, operand)) continue;
      Sum result = SumOf(node.results[0]);
      result.over = sum.over;
      result.accumulated = sum.accumulated;
      made->push_back(std::move(result));
      break;
    }
    if (node.op->name == "all_to_all") {
      if (made->empty()) made->push_back(SumOf(node.results[0]));
      made->back().pieces_of = group;
    } else if (node.op->name == "sum_pieces") {
      const auto pieces =
          std::find_if(sums_.begin(), sums_.end(), [&](const Sum& sum) {
            return Overlaps(sum, operand) && sum.pieces_of != nullptr;
          });
      if (pieces == sums_.end() ||
          pieces->pieces_of->size != node.attributes.Int("size")) {
        return absl::FailedPreconditionError(
            "adds up pieces that are not one of each rank of a group");
      }
      made->back().over.push_back(pieces->pieces_of);
    }
    return absl::OkStatus();
  }

  // A gradient shard adds up over micro-batches: whoever writes it adds to it,
  // or makes it of what has added up.
  absl::Status CheckShardIsKept(const Node& node,
                                const std::vector<Sum>& made) const {
    const int num_results = static_cast<int>(node.results.size());
    for (int r = 0; r < num_results; ++r) {
      const Buffer& buffer = graph_.buffer_of(node.results[r]);
      if (buffer.kind != MemoryKind::kGradientShard ||
          buffer.lifetime == Lifetime::kPhase ||
          TiedOperand(*node.op, node.attributes,
                      static_cast<int>(node.operands.size()), num_results,
                      r) >= 0 ||
          (!made.empty() && made.back().accumulated)) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "replaces ", buffer.name, " and with it what earlier micro-batches ",
          "have left there: accumulate is missing"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckNorm(const Value& squares) const {
    for (const Sum& sum : sums_) {
      if (Overlaps(sum, squares) && sum.share_of != nullptr &&
          sum.share_of->size > 1) {
        return absl::FailedPreconditionError(
            absl::StrCat("reads squares of one shard of the group ",
                         sum.share_of->name, ", not summed over it"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Accumulate(const Node& node, std::vector<Sum>* made) {
    const std::vector<const Group*> over =
        Over(graph_.values[node.operands[1]]);
    const Value& result = graph_.values[node.results[0]];
    for (const Sum& sum : sums_) {
      // Once around, what is there is of the step before, and not added to.
      if (checks_ || !Overlaps(sum, result) || sum.over == over) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "adds a sum over ", Names(over), " to one over ", Names(sum.over)));
    }
    made->push_back(SumOf(node.results[0]));
    made->back().over = over;
    made->back().accumulated =
        graph_.buffers[result.buffer].lifetime == Lifetime::kStep;
    return absl::OkStatus();
  }

  std::vector<const Group*> Over(const Value& value) const {
    for (const Sum& sum : sums_)
      if (Overlaps(sum, value)) return sum.over;
    return {};
  }

  // What an optimizer takes for the gradient.
  absl::Status CheckGradient(const Value& gradient) const {
    if (world_ == nullptr || !checks_) return absl::OkStatus();
    const std::vector<const Group*> over = Over(gradient);
    if (MakeUp(over, *world_)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "takes ", graph_.buffers[gradient.buffer].name,
        " for a gradient, which is summed over ", Names(over),
        "; that is not each of the ", world_->size, " ranks once"));
  }

  const Graph& graph_;
  const Group* const world_;  // may be null
  bool checks_ = false;
  std::vector<Sum> sums_;  // of the phase so far, and of the step
};

}  // namespace

absl::Status VerifyReductions(const Graph& graph) {
  return ReductionVerifier(graph).Run();
}

}  // namespace shardgraph
