#include "fsdp/train/finite_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/train/shard_writer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int64_t kChunk = 1 << 20;  // elements on the host at a time

// Of an element in memory.
bool IsFinite(DType dtype, const char* element) {
  uint16_t half = 0;
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, element, sizeof(value));
      return std::isfinite(value);
    }
    case DType::kF64: {
      double value;
      std::memcpy(&value, element, sizeof(value));
      return std::isfinite(value);
    }
    case DType::kBF16:
      std::memcpy(&half, element, sizeof(half));
      return (half & 0x7f80) != 0x7f80;
    case DType::kF16:
      std::memcpy(&half, element, sizeof(half));
      return (half & 0x7c00) != 0x7c00;
    default:
      return true;
  }
}

// `data`: the span of the type's elements in memory.
bool IsFinite(const TensorType& type, const std::vector<char>& data) {
  const int64_t size = SizeOf(type.dtype);
  if (type.num_elements() == 0) return true;
  std::vector<int64_t> index(type.rank());
  int64_t offset = 0;
  while (true) {
    if (!IsFinite(type.dtype, data.data() + offset * size)) return false;
    int d = type.rank() - 1;
    for (; d >= 0; --d) {
      offset += type.strides[d];
      if (++index[d] < type.shape[d]) break;
      offset -= index[d] * type.strides[d];
      index[d] = 0;
    }
    if (d < 0) return true;
  }
}

// Flat parameters and gradients have padding, which may be anything.
bool HasPadding(MemoryKind kind) {
  return kind == MemoryKind::kGatheredParameter ||
         kind == MemoryKind::kComputeParameter ||
         kind == MemoryKind::kGradientShard || kind == MemoryKind::kReduceStage;
}

}  // namespace

absl::StatusOr<std::string> ParameterNotFinite(const TrainingPlan& plan,
                                               int shard, Executor& executor) {
  ShardWriter shards(plan, shard, executor);
  std::vector<float> values;
  for (const HeldRange& range : shards.Held()) {
    for (int64_t begin = 0; begin < range.elements; begin += kChunk) {
      values.resize(std::min(kChunk, range.elements - begin));
      SG_RETURN_IF_ERROR(shards.Read(range, begin, absl::MakeSpan(values),
                                     ShardKind::kMaster));
      for (const float value : values) {
        if (!std::isfinite(value))
          return absl::StrCat("parameter ", range.parameter->name);
      }
    }
  }
  return std::string();
}

absl::StatusOr<std::string> ModuleNotFinite(const TrainingPlan& plan,
                                            PhaseId phase, Executor& executor) {
  const Graph& graph = plan.plan.graph;
  std::string found;
  absl::Status status;
  std::vector<char> data;
  SG_RETURN_IF_ERROR(executor.RunNodes(phase, [&](NodeId id) {
    const Node& node = graph.nodes[id];
    if (!found.empty() || !status.ok() || node.lane != LaneKind::kCompute)
      return;
    for (ValueId result : node.results) {
      const Value& value = graph.values[result];
      if (!IsFloating(value.type.dtype) ||
          HasPadding(graph.buffers[value.buffer].kind)) {
        continue;
      }
      data.resize(value.type.span_bytes());
      status.Update(executor.ReadBuffer(value.buffer, value.offset, data.data(),
                                        static_cast<int64_t>(data.size())));
      if (!status.ok() || IsFinite(value.type, data)) continue;
      found = absl::StrCat("module ", graph.scope_of(node), " (", node.op->name,
                           ", ", DirectionName(node.direction), ")");
      return;
    }
  }));
  SG_RETURN_IF_ERROR(status);
  return found;
}

}  // namespace shardgraph
