#include "tools/trace/measured_cost.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/op.h"
#include "kernels/op_table.h"
#include "tools/trace/median.h"

namespace shardgraph {
namespace {

// What nodes alike have in common, direction apart.
std::string SignatureOf(const Graph& graph, const Node& node) {
  std::string signature =
      absl::StrCat(node.op->name, " ", node.attributes.ToString());
  for (const std::vector<TensorType>& types :
       {graph.OperandTypes(node), graph.ResultTypes(node)}) {
    signature.push_back(' ');
    for (const TensorType& type : types)
      absl::StrAppend(&signature, type.ToString());
  }
  return signature;
}

std::string WithDirection(const Node& node, const std::string& signature) {
  return absl::StrCat(DirectionName(node.direction), " ", signature);
}

bool IsCollective(const Node& node) {
  return node.op->lane == LaneKind::kGather ||
         node.op->lane == LaneKind::kReduce;
}

}  // namespace

MeasuredCost::MeasuredCost(const TargetSpec& target)
    : model_(CostModel(target)) {}

double MeasuredCost::Samples::Median() const {
  if (median < 0) median = MedianOf(seconds);
  return median;
}

void MeasuredCost::Add(const StepPlan& plan,
                       absl::Span<const RankTrace> ranks) {
  // By node and rank: its runs, in order.
  const size_t nodes = plan.graph.nodes.size();
  std::vector<std::vector<std::vector<TraceEvent>>> runs(
      nodes, std::vector<std::vector<TraceEvent>>(ranks.size()));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const std::vector<TraceEvent>& lane : ranks[rank].lanes) {
      for (const TraceEvent& event : lane)
        runs[event.id][rank].push_back(event);
    }
  }
  for (size_t id = 0; id < nodes; ++id) {
    if (runs[id][0].empty()) continue;
    const Node& node = plan.graph.nodes[id];
    const std::string signature = SignatureOf(plan.graph, node);
    Samples& alike = samples_[signature];
    Samples& same_direction = samples_[WithDirection(node, signature)];
    alike.median = same_direction.median = -1;
    Family& family = families_[std::string(FamilyOf(node.op->name))];
    for (size_t run = 0; run < runs[id][0].size(); ++run) {
      int64_t all_there = 0;
      for (const auto& of_rank : runs[id]) {
        SG_CHECK_LT(run, of_rank.size())
            << "the ranks recorded different steps";
        all_there = std::max(all_there, of_rank[run].begin);
      }
      for (const auto& of_rank : runs[id]) {
        const TraceEvent& event = of_rank[run];
        const int64_t begin =
            IsCollective(node) ? std::min(all_there, event.end) : event.begin;
        const double seconds = 1e-9 * static_cast<double>(event.end - begin);
        alike.seconds.push_back(seconds);
        same_direction.seconds.push_back(seconds);
        family.measured += seconds;
        family.modelled += model_(plan.graph, node);
      }
    }
  }
}

double MeasuredCost::Seconds(const Graph& graph, const Node& node) const {
  const std::string signature = SignatureOf(graph, node);
  auto found = samples_.find(WithDirection(node, signature));
  if (found == samples_.end()) found = samples_.find(signature);
  if (found != samples_.end()) return factor_ * found->second.Median();
  const auto family = families_.find(FamilyOf(node.op->name));
  const bool known = family != families_.end() && family->second.modelled > 0;
  return factor_ * model_(graph, node) *
         (known ? family->second.measured / family->second.modelled : 1.0);
}

}  // namespace shardgraph
