// MeasuredCost: a cost model of nodes that were seen to run: a node takes what
// nodes alike took in recorded steps.
#ifndef TOOLS_TRACE_MEASURED_COST_H_
#define TOOLS_TRACE_MEASURED_COST_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/step_plan.h"
#include "proto/target.pb.h"
#include "tools/plan/cost_model.h"
#include "tools/trace/rank_trace.h"

namespace shardgraph {

class MeasuredCost {
 public:
  explicit MeasuredCost(const TargetSpec& target);

  // `ranks`, all of the world, ran steps of `plan`.
  void Add(const StepPlan& plan, absl::Span<const RankTrace> ranks);

  // Those alike have the same op, attributes, types and direction, whatever
  // the direction where there are none, and take the median of what those
  // took; a collective from when its last rank had come. A node like none
  // takes what the target's model says, times what its family took over what
  // the model says for that. Times `factor`. Refers to this.
  double Seconds(const Graph& graph, const Node& node) const;

  // What steps took over what their nodes add up to: the host's part, and
  // ranks that wait for each other. 1 at first.
  void set_factor(double factor) { factor_ = factor; }
  double factor() const { return factor_; }

 private:
  struct Samples {
    std::vector<double> seconds;
    mutable double median = -1;  // -1: not known yet
    double Median() const;
  };
  struct Family {
    double measured = 0, modelled = 0;
  };

  const NodeSeconds model_;
  double factor_ = 1;
  std::map<std::string, Samples, std::less<>> samples_;
  std::map<std::string, Family, std::less<>> families_;
};

}  // namespace shardgraph

#endif  // TOOLS_TRACE_MEASURED_COST_H_
