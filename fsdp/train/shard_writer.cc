#include "fsdp/train/shard_writer.h"

#include <algorithm>
#include <bit>

#include "kernels/check.h"
#include "kernels/random/random.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements on the host at a time

}  // namespace

BufferId ShardReader::BufferOf(int unit, ShardKind kind) const {
  const UnitBuffers& buffers = plan_.units[unit];
  switch (kind) {
    case ShardKind::kMaster:
      return buffers.master;
    case ShardKind::kExpAvg:
      return buffers.exp_avg;
    case ShardKind::kExpAvgSq:
      return buffers.exp_avg_sq;
  }
  return kNone;
}

std::vector<HeldRange> HeldRanges(const TrainingPlan& plan, int shard) {
  std::vector<HeldRange> held;
  for (size_t u = 0; u < plan.layout.units().size(); ++u) {
    const FlatParameter& flat = plan.layout.units()[u].flat;
    for (const MemberPiece& piece : flat.PiecesOf(shard)) {
      held.push_back({flat.members[piece.member].parameter, static_cast<int>(u),
                      piece.member_begin, piece.shard_begin, piece.elements});
    }
  }
  return held;
}

DType ShardReader::DTypeOf(BufferId buffer, int unit) const {
  const UnitBuffers& buffers = plan_.units[unit];
  if (buffer == buffers.master) return DType::kF32;
  return buffer == buffers.compute ? plan_.compute : plan_.moments;
}

absl::Status ShardWriter::WriteShard(BufferId buffer, DType dtype, int64_t at,
                                     absl::Span<const float> values) {
  if (dtype == DType::kF32) {
    return executor_.WriteBuffer(buffer, at * SizeOf(dtype), values.data(),
                                 values.size() * SizeOf(dtype));
  }
  std::vector<uint16_t> rounded(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    rounded[i] = dtype == DType::kBF16 ? BFloat16(values[i]).bits
                                       : Float16(values[i]).bits;
  }
  return executor_.WriteBuffer(buffer, at * 2, rounded.data(),
                               rounded.size() * 2);
}

absl::Status ShardWriter::Write(const HeldRange& range, int64_t begin,
                                absl::Span<const float> values,
                                ShardKind kind) {
  SG_CHECK(begin >= 0 &&
           begin + static_cast<int64_t>(values.size()) <= range.elements)
      << "leaves the held range";
  const int64_t at = range.shard_begin + begin;
  if (const BufferId buffer = BufferOf(range.unit, kind); buffer != kNone) {
    SG_RETURN_IF_ERROR(
        WriteShard(buffer, DTypeOf(buffer, range.unit), at, values));
  }
  const UnitBuffers& buffers = plan_.units[range.unit];
  if (kind != ShardKind::kMaster || buffers.compute == kNone ||
      buffers.compute == buffers.master) {
    return absl::OkStatus();
  }
  return WriteShard(buffers.compute, plan_.compute, at, values);
}

BufferId ShardReader::SourceOf(int unit, ShardKind kind) const {
  BufferId buffer = BufferOf(unit, kind);
  if (buffer == kNone && kind == ShardKind::kMaster)
    buffer = plan_.units[unit].compute;
  SG_CHECK(buffer != kNone) << "the plan does not keep that shard";
  return buffer;
}

const float* ShardReader::View(const HeldRange& range, int64_t begin,
                               int64_t elements, ShardKind kind) {
  SG_CHECK(begin >= 0 && begin + elements <= range.elements)
      << "leaves the held range";
  const BufferId buffer = SourceOf(range.unit, kind);
  if (DTypeOf(buffer, range.unit) != DType::kF32) return nullptr;
  return reinterpret_cast<const float*>(
      source_.View(buffer, (range.shard_begin + begin) * SizeOf(DType::kF32),
                   elements * SizeOf(DType::kF32)));
}

absl::Status ShardReader::Read(const HeldRange& range, int64_t begin,
                               absl::Span<float> values, ShardKind kind) {
  SG_CHECK(begin >= 0 &&
           begin + static_cast<int64_t>(values.size()) <= range.elements)
      << "leaves the held range";
  const int64_t at = range.shard_begin + begin;
  const BufferId buffer = SourceOf(range.unit, kind);
  const DType dtype = DTypeOf(buffer, range.unit);
  if (dtype == DType::kF32) {
    return source_.ReadBuffer(buffer, at * SizeOf(dtype), values.data(),
                              values.size() * SizeOf(dtype));
  }
  std::vector<uint16_t> rounded(values.size());
  SG_RETURN_IF_ERROR(
      source_.ReadBuffer(buffer, at * 2, rounded.data(), rounded.size() * 2));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = dtype == DType::kBF16
                    ? float{std::bit_cast<BFloat16>(rounded[i])}
                    : float{std::bit_cast<Float16>(rounded[i])};
  }
  return absl::OkStatus();
}

absl::Status ShardWriter::Fill(
    ShardKind kind,
    absl::FunctionRef<absl::Status(const Parameter& parameter, int64_t begin,
                                   absl::Span<float> values)>
        fill,
    absl::FunctionRef<bool(const Parameter& parameter)> wanted) {
  std::vector<float> values;
  for (const HeldRange& range : Held()) {
    if (!wanted(*range.parameter)) continue;
    for (int64_t begin = 0; begin < range.elements; begin += kChunk) {
      values.resize(std::min(kChunk, range.elements - begin));
      SG_RETURN_IF_ERROR(
          fill(*range.parameter, range.begin + begin, absl::MakeSpan(values)));
      SG_RETURN_IF_ERROR(Write(range, begin, values, kind));
    }
  }
  return absl::OkStatus();
}

absl::Status GatherParameters(const TrainingPlan& plan, Executor& executor) {
  const PhaseId gather = plan.plan.graph.FindPhase(kGatherPhase);
  return gather == kNone ? absl::OkStatus() : executor.Run(gather);
}

absl::Status InitializeParameters(const TrainingPlan& plan, uint64_t seed,
                                  int shard, Executor& executor) {
  return ShardWriter(plan, shard, executor)
      .Fill(ShardKind::kMaster, [&](const Parameter& parameter, int64_t begin,
                                    absl::Span<float> values) {
        switch (parameter.init) {
          case Parameter::Init::kZeros:
            std::fill(values.begin(), values.end(), 0.0f);
            break;
          case Parameter::Init::kOnes:
            std::fill(values.begin(), values.end(), 1.0f);
            break;
          case Parameter::Init::kNormal: {
            const RandomKey key = MakeRandomKey(seed, HashName(parameter.name));
            for (size_t i = 0; i < values.size(); ++i) {
              values[i] = static_cast<float>(parameter.std) *
                          RandomNormal(key, begin + i);
            }
            break;
          }
        }
        return absl::OkStatus();
      });
}

}  // namespace shardgraph
