// Interpreter: runs a phase of a graph in program order on host memory, for
// tests of passes and gradients.
//
// One block of memory per buffer, so that a pass which confuses buffers or
// versions shows up; no schedule, no arena. Everything starts as NaN bytes, and
// phase-lifetime buffers are poisoned again at the start of each run; the
// buffer "step_state" starts as StepState{}. Program order is the meaning of a
// graph (graph/graph.h): any schedule must give the same bytes.
#ifndef GRAPH_TESTING_INTERPRETER_H_
#define GRAPH_TESTING_INTERPRETER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/graph.h"
#include "kernels/collective/communicator.h"
#include "kernels/kernel.h"
#include "kernels/reference/kernels.h"

namespace shardgraph {

class Interpreter {
 public:
  // Both outlive the interpreter. The graph may grow between runs.
  explicit Interpreter(const Graph& graph,
                       const KernelTable& kernels = ReferenceKernels());
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // The communicator of a group that collectives of the graph name; outlives
  // the interpreter.
  void SetCommunicator(absl::string_view group, Communicator* communicator);

  // The first error of a kernel or of finding one, with the node's text.
  absl::Status Run(absl::string_view phase);

  // The elements of a value in row-major order, strides honoured.
  std::vector<double> Read(ValueId value);
  // `elements` rounded to the value's dtype; exactly as many as it has.
  void Write(ValueId value, absl::Span<const double> elements);
  // The value's elements as they lie in memory, without rounding; contiguous
  // values only.
  std::string Bytes(ValueId value);

  Tensor tensor(ValueId value);

 private:
  std::byte* Memory(BufferId buffer);

  const Graph& graph_;
  const KernelTable& kernels_;
  std::map<BufferId, std::vector<std::byte>> memory_;
  std::map<std::string, Communicator*> communicators_;
};

}  // namespace shardgraph

#endif  // GRAPH_TESTING_INTERPRETER_H_
