// GradientCheck: gradients that Differentiate makes, against central finite
// differences, all in FP64 on the reference kernels.
//
//   GradientCheck check;
//   const ValueId x = check.Parameter("x", {3, 4});
//   check.Run([&](GraphBuilder& b) { return b.Emit1("gelu", {x}); });
#ifndef GRAPH_TESTING_GRADIENT_CHECK_H_
#define GRAPH_TESTING_GRADIENT_CHECK_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/graph.h"
#include "graph/testing/interpreter.h"

namespace shardgraph {

class GradientCheck {
 public:
  // Emits the forward nodes; returns the result whose dot product with a fixed
  // random tensor is differentiated, or the stats of a loss op.
  using Model = std::function<ValueId(GraphBuilder& builder)>;

  GradientCheck();

  // An F64 input with random values in [-1, 1] whose gradient is checked.
  ValueId Parameter(absl::string_view name, Dims shape);
  // Further inputs, without gradient.
  ValueId Constant(absl::string_view name, const TensorType& type,
                   std::vector<double> elements);

  // Emits the model twice, once to be differentiated, and compares each element
  // of each parameter's gradient: |difference| <= tolerance * (1 + |expected|).
  void Run(const Model& model, double tolerance = 1e-6);

  // After Run.
  const Graph& graph() const { return graph_; }
  Interpreter& interpreter() { return interpreter_; }
  const std::vector<double>& gradient(absl::string_view name) const {
    return gradients_.at(std::string(name));
  }
  // Nodes of that op in the differentiated phase.
  int Count(absl::string_view op) const;

  DifferentiateOptions options;  // leaves and seeds are added by Run

 private:
  Graph graph_;
  GraphBuilder builder_;
  Interpreter interpreter_;
  std::vector<std::pair<std::string, ValueId>> parameters_;
  std::vector<std::pair<ValueId, std::vector<double>>> contents_;
  std::map<std::string, std::vector<double>> gradients_;
};

// `n` reproducible numbers in [-1, 1].
std::vector<double> RandomElements(int64_t n, int seed);

}  // namespace shardgraph

#endif  // GRAPH_TESTING_GRADIENT_CHECK_H_
