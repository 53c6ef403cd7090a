// Runs a training, all its ranks as threads over loopback or one rank over
// communicators from outside, and returns what it did: for parity tests.
#ifndef TESTS_HARNESS_TRAINING_RUN_H_
#define TESTS_HARNESS_TRAINING_RUN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/data/batches.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"
#include "kernels/backend.h"
#include "kernels/collective/communicator.h"
#include "kernels/kernel.h"
#include "proto/train.pb.h"

namespace shardgraph {

struct TrainingRunOptions {
  int world_size = 1;                    // RunTraining
  int threads = 1;                       // compute threads of each rank
  const KernelTable* kernels = nullptr;  // null: those of the CPU backend
  TargetSpec target;                     // lanes 0: two
  // A rank's backend, with memory from `allocate`; made on the rank's thread.
  // Null: the CPU backend.
  std::function<absl::StatusOr<std::unique_ptr<Backend>>(
      CommunicatorFactory& factory,
      std::function<absl::StatusOr<void*>(int64_t bytes)> allocate)>
      backend;
  // What connects `size` ranks, that of rank r at r. Null: loopback.
  std::function<std::vector<std::unique_ptr<CommunicatorFactory>>(int size)>
      world;
  // Sequence g of the run: fills `tokens` and `targets` of sequence_length
  // each. Null: counting tokens, a third of the sequences with some targets
  // masked.
  std::function<void(int64_t sequence, absl::Span<int32_t> tokens,
                     absl::Span<int32_t> targets)>
      sequences;
  // Initial value of a parameter; null: InitializeParameters.
  std::function<std::vector<float>(const Parameter& parameter)> initial;
  // ExecutorOptions::agree of a rank; null: each decides for itself.
  std::function<absl::StatusOr<bool>(int rank, bool mine)> agree;
  // Called on every rank after each step, before the next; null: nothing.
  std::function<void(int rank, int64_t step, Executor& executor,
                     const TrainingPlan& plan)>
      after_step;
  // Called after each node, on its lane, which turns capture off; null:
  // nothing.
  std::function<void(const Graph& graph, NodeId node)> after_node;
};

struct TrainingRunResult {
  std::vector<double> losses;  // of each step
  std::vector<double> gradient_norms;
  std::map<std::string, std::vector<float>>
      initial;  // weights by parameter name, whole
  std::map<std::string, std::vector<float>> weights;  // after the last step
  // The averaged, unclipped gradients of the last step, whole.
  std::map<std::string, std::vector<float>> gradients;
  std::vector<int64_t> device_bytes;  // that each rank's backend allocated;
                                      // of RunTrainingRank its own
};

// Runs config.run.steps steps. `config` need not be resolved. Internal when
// ranks that hold the same shards end with different bits.
absl::StatusOr<TrainingRunResult> RunTraining(
    TrainConfig config, const TrainingRunOptions& options);

// The same on the rank of `factory` alone: of the weights and gradients only
// its own parts are filled, the rest is 0. Collective: the other ranks of the
// factory's world do likewise. `options.world_size` is not looked at.
absl::StatusOr<TrainingRunResult> RunTrainingRank(TrainConfig config,
                                                  TrainingRunOptions options,
                                                  CommunicatorFactory& factory);

// || a - b || / || b ||, over all elements; 0 when both are zero.
double RelativeDifference(const std::vector<float>& a,
                          const std::vector<float>& b);

}  // namespace shardgraph

#endif  // TESTS_HARNESS_TRAINING_RUN_H_
