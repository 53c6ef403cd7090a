#include "graph/testing/interpreter.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/lane.h"
#include "kernels/reference/access.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

constexpr std::byte kPoison{0xff};  // NaN in every floating dtype
constexpr int64_t kAlignment = 256;

// The calling thread, one range.
class InlinePool final : public ThreadPool {
 public:
  int num_threads() const override { return 1; }
  void ParallelFor(int64_t n, int64_t grain,
                   absl::FunctionRef<void(int64_t, int64_t)> body) override {
    for (int64_t begin = 0; begin < n; begin += grain)
      body(begin, std::min(n, begin + grain));
  }
};

std::byte* Align(std::byte* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return p + (kAlignment - address % kAlignment) % kAlignment;
}

}  // namespace

Interpreter::Interpreter(const Graph& graph, const KernelTable& kernels)
    : graph_(graph), kernels_(kernels) {}

void Interpreter::SetCommunicator(absl::string_view group,
                                  Communicator* communicator) {
  communicators_[std::string(group)] = communicator;
}

std::byte* Interpreter::Memory(BufferId id) {
  const Buffer& buffer = graph_.buffers[id];
  std::vector<std::byte>& bytes = memory_[id];
  if (bytes.empty()) {
    bytes.assign(buffer.bytes + kAlignment, kPoison);
    if (buffer.name == "step_state") {
      const StepState state;
      std::memcpy(Align(bytes.data()), &state, sizeof(state));
    }
  }
  return Align(bytes.data());
}

Tensor Interpreter::tensor(ValueId id) {
  const Value& value = graph_.values[id];
  SG_CHECK(value.end() <= graph_.buffers[value.buffer].bytes)
      << "value " << id << " leaves " << graph_.buffers[value.buffer].name;
  return Tensor{Memory(value.buffer) + value.offset, value.type};
}

absl::Status Interpreter::Run(absl::string_view phase) {
  const PhaseId phase_id = graph_.FindPhase(phase);
  SG_CHECK(phase_id != kNone) << "no phase " << std::string(phase);
  for (auto& [buffer, bytes] : memory_) {
    if (graph_.buffers[buffer].lifetime == Lifetime::kPhase)
      std::fill(bytes.begin(), bytes.end(), kPoison);
  }
  InlinePool pool;
  Lane lane;
  lane.pool = &pool;
  for (NodeId id : graph_.phases[phase_id].nodes) {
    const Node& node = graph_.nodes[id];
    std::vector<Tensor> operands, results;
    for (ValueId v : node.operands) operands.push_back(tensor(v));
    for (ValueId v : node.results) results.push_back(tensor(v));
    const std::vector<TensorType> operand_types = graph_.OperandTypes(node);
    const std::vector<TensorType> result_types = graph_.ResultTypes(node);

    KernelContext context;
    context.op = node.op;
    context.attributes = &node.attributes;
    context.operands = operands;
    context.results = results;
    if (node.attributes.Has(kGroupAttribute)) {
      const auto it =
          communicators_.find(node.attributes.String(kGroupAttribute));
      SG_CHECK(it != communicators_.end())
          << PrintNode(graph_, id) << ": no communicator";
      context.communicator = it->second;
      context.rank = it->second->rank();
      context.group_size = it->second->size();
    }
    const auto run = [&]() -> absl::Status {
      SG_ASSIGN_OR_RETURN(const KernelDef* kernel,
                          kernels_.Find(node.op->name, node.attributes,
                                        operand_types, result_types));
      std::vector<std::byte> workspace;
      if (kernel->workspace != nullptr) {
        const int64_t bytes =
            kernel->workspace(node.attributes, operand_types, result_types);
        workspace.assign(bytes + kAlignment, kPoison);
        context.workspace =
            Tensor{Align(workspace.data()), TensorType(DType::kU8, {bytes})};
      }
      SG_ASSIGN_OR_RETURN(std::unique_ptr<PreparedKernel> prepared,
                          kernel->prepare(context));
      return prepared->Launch(lane);
    };
    const absl::Status status = run();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(PrintNode(graph_, id),
                                                      ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

std::vector<double> Interpreter::Read(ValueId value) {
  const Tensor t = tensor(value);
  std::vector<double> elements(t.type.num_elements());
  for (size_t i = 0; i < elements.size(); ++i)
    elements[i] = LoadElement(t.type.dtype, t.data, OffsetOf(t.type, i));
  return elements;
}

void Interpreter::Write(ValueId value, absl::Span<const double> elements) {
  const Tensor t = tensor(value);
  SG_CHECK_EQ(static_cast<int64_t>(elements.size()), t.type.num_elements());
  for (size_t i = 0; i < elements.size(); ++i)
    StoreElement(t.type.dtype, t.data, OffsetOf(t.type, i), elements[i]);
}

std::string Interpreter::Bytes(ValueId value) {
  const Tensor t = tensor(value);
  SG_CHECK(t.type.contiguous()) << t.type.ToString();
  return std::string(static_cast<const char*>(t.data), t.type.span_bytes());
}

}  // namespace shardgraph
