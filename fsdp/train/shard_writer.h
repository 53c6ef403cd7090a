// ShardReader and ShardWriter: values of whole parameters out of this rank's
// shards, or a copy of them, and into them.
#ifndef FSDP_TRAIN_SHARD_WRITER_H_
#define FSDP_TRAIN_SHARD_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"

namespace shardgraph {

// A range of a parameter that this rank holds.
struct HeldRange {
  const Parameter* parameter = nullptr;
  int unit = 0;
  int64_t begin = 0;        // elements of the parameter, row-major
  int64_t shard_begin = 0;  // elements of the shard
  int64_t elements = 0;
};

// Which of a unit's persistent shards.
enum class ShardKind { kMaster, kExpAvg, kExpAvgSq };

// Everything that rank `shard` of a shard group holds, in the order of units
// and members. `plan` outlives the ranges.
std::vector<HeldRange> HeldRanges(const TrainingPlan& plan, int shard);

class ShardReader {
 public:
  // `shard`: this rank's index in its shard group. All outlive the reader.
  ShardReader(const TrainingPlan& plan, int shard, BufferReader& source)
      : plan_(plan), shard_(shard), source_(source) {}

  std::vector<HeldRange> Held() const { return HeldRanges(plan_, shard_); }
  // Reads `values.size()` elements from element `begin` of the range; kMaster,
  // where there is none, from the compute copy.
  absl::Status Read(const HeldRange& range, int64_t begin,
                    absl::Span<float> values, ShardKind kind);
  // The same where they are; null where they have to be read.
  const float* View(const HeldRange& range, int64_t begin, int64_t elements,
                    ShardKind kind);

 protected:
  BufferId BufferOf(int unit, ShardKind kind) const;
  DType DTypeOf(BufferId buffer, int unit) const;

  const TrainingPlan& plan_;

 private:
  // What Read reads.
  BufferId SourceOf(int unit, ShardKind kind) const;

  const int shard_;
  BufferReader& source_;
};

class ShardWriter : public ShardReader {
 public:
  // Both outlive the writer.
  ShardWriter(const TrainingPlan& plan, int shard, Executor& executor)
      : ShardReader(plan, shard, executor), executor_(executor) {}

  // Writes values[i] to element begin + i of the range, rounded to nearest
  // where the shard is not FP32; kMaster also writes the compute copy (but see
  // GatherParameters). Buffers that the plan does not have are skipped (a plan
  // without training has no master in BF16).
  absl::Status Write(const HeldRange& range, int64_t begin,
                     absl::Span<const float> values, ShardKind kind);

  // Fills every range of the parameters that `wanted` (if given) says piece by
  // piece with `fill(parameter, first element, values)`; holds less than a MiB.
  absl::Status Fill(
      ShardKind kind,
      absl::FunctionRef<absl::Status(const Parameter& parameter, int64_t begin,
                                     absl::Span<float> values)>
          fill,
      absl::FunctionRef<bool(const Parameter& parameter)> wanted =
          [](const Parameter&) { return true; });

 private:
  absl::Status WriteShard(BufferId buffer, DType dtype, int64_t at,
                          absl::Span<const float> values);

  Executor& executor_;
};

// Makes parameters that are kept whole (ZERO1) what the shards hold; to be
// called after shards have been written, unless the trainer's first step comes
// next, which does so itself. Collective: all ranks alike.
absl::Status GatherParameters(const TrainingPlan& plan, Executor& executor);

// Initial weights: a pure function of (seed, parameter name, element), whatever
// the world size and the split.
absl::Status InitializeParameters(const TrainingPlan& plan, uint64_t seed,
                                  int shard, Executor& executor);

}  // namespace shardgraph

#endif  // FSDP_TRAIN_SHARD_WRITER_H_
