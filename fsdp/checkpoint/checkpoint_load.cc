#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/checkpoint_names.h"
#include "fsdp/checkpoint/checkpoint_reader.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/parameter_patterns.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/train/shard_writer.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

// Copies the range into the shard; `values` is room to widen in.
absl::Status ReadShard(CheckpointReader& reader, const CheckpointTensor& tensor,
                       const HeldRange& held, ShardKind kind,
                       ShardWriter* shards, std::vector<float>* values) {
  return reader.Read(tensor, held.begin, held.elements,
                     [&](int64_t first, DType dtype, absl::string_view bytes) {
                       values->resize(bytes.size() / SizeOf(dtype));
                       ReadAsFloat(dtype, bytes, 0, absl::MakeSpan(*values));
                       return shards->Write(held, first, *values, kind);
                     });
}

// The checkpoint has the model's wanted parameters, and, when all are wanted,
// no others.
absl::Status CheckModel(const std::string& folder,
                        const CheckpointManifest& manifest,
                        const CheckpointReader& reader, const Model& model,
                        const std::set<const Parameter*>& wanted, bool all) {
  std::set<std::string> names;
  for (const Parameter* parameter : model.parameters()) {
    names.insert(parameter->name);
    if (wanted.count(parameter) == 0) continue;
    const CheckpointTensor* tensor = reader.Find(parameter->name);
    if (tensor == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("checkpoint ", folder, " has no parameter ",
                       parameter->name, "; it is of another model"));
    }
    if (Dims(tensor->shape().begin(), tensor->shape().end()) !=
        parameter->shape) {
      return absl::FailedPreconditionError(absl::StrCat(
          "checkpoint ", folder, " has ", parameter->name, " of shape [",
          absl::StrJoin(tensor->shape(), ", "), "], but the model's is [",
          absl::StrJoin(parameter->shape, ", "), "]; it is of another model"));
    }
  }
  if (!all) return absl::OkStatus();
  for (const CheckpointTensor& tensor : manifest.tensors()) {
    if (!absl::StartsWith(tensor.name(), kOptimizerPrefix) &&
        names.count(tensor.name()) == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "checkpoint ", folder, " has a parameter ", tensor.name(),
          ", which the model does not have; it is of another model"));
    }
  }
  return absl::OkStatus();
}

absl::Status RestoreState(const std::string& folder,
                          const CheckpointManifest& manifest,
                          const CheckpointRank& rank) {
  const CheckpointState& saved = manifest.state();
  if (saved.beta1_power_size() != StepState::kMaxGroups ||
      saved.beta2_power_size() != StepState::kMaxGroups) {
    return absl::DataLossError(
        absl::StrCat(folder, ": state has ", saved.beta1_power_size(), " and ",
                     saved.beta2_power_size(), " beta powers; ",
                     StepState::kMaxGroups, " are expected"));
  }
  StepState state;
  SG_RETURN_IF_ERROR(
      rank.executor->ReadBuffer(rank.plan->state, 0, &state, sizeof(state)));
  state.run_step = saved.run_step();
  state.optimizer_step = saved.optimizer_step();
  for (int g = 0; g < StepState::kMaxGroups; ++g) {
    state.beta1_power[g] = saved.beta1_power(g);
    state.beta2_power[g] = saved.beta2_power(g);
  }
  // A run that scales otherwise begins afresh.
  if (manifest.config().precision().compute() ==
      rank.config->precision().compute()) {
    state.loss_scale = saved.loss_scale();
    state.growth_counter = saved.growth_counter();
  }
  return rank.executor->WriteBuffer(rank.plan->state, 0, &state, sizeof(state));
}

}  // namespace

absl::StatusOr<CheckpointManifest> LoadCheckpoint(const std::string& folder,
                                                  const CheckpointRank& rank,
                                                  const LoadOptions& options) {
  SG_CHECK(options.weights_only || options.parameters.empty())
      << "moments and state are of all parameters";
  SG_ASSIGN_OR_RETURN(CheckpointManifest manifest,
                      ReadCheckpointManifest(folder));
  CheckpointReader reader(folder, manifest);
  const TrainingPlan& plan = *rank.plan;
  SG_ASSIGN_OR_RETURN(const std::set<const Parameter*> wanted,
                      MatchingParameters(*plan.model, options.parameters,
                                         /*adapters=*/true));
  SG_RETURN_IF_ERROR(CheckModel(folder, manifest, reader, *plan.model, wanted,
                                options.parameters.empty()));
  ShardWriter shards(plan, rank.rank % plan.groups.shard, *rank.executor);
  std::vector<float> values;
  for (const HeldRange& held : shards.Held()) {
    if (wanted.count(held.parameter) == 0) continue;
    for (ShardKind kind : KindsOf(plan.units[held.unit])) {
      if (options.weights_only && kind != ShardKind::kMaster) continue;
      const std::string name = CheckpointTensorName(kind, held.parameter->name);
      const CheckpointTensor* tensor = reader.Find(name);
      if (tensor == nullptr ||
          Dims(tensor->shape().begin(), tensor->shape().end()) !=
              held.parameter->shape) {
        return absl::FailedPreconditionError(absl::StrCat(
            "checkpoint ", folder, " has no ", name,
            "; it was made with optimizer.kind ",
            OptimizerSpec::Kind_Name(manifest.config().optimizer().kind()),
            ", or with that parameter in optimizer.frozen"));
      }
      SG_RETURN_IF_ERROR(
          ReadShard(reader, *tensor, held, kind, &shards, &values));
    }
  }
  if (!options.weights_only)
    SG_RETURN_IF_ERROR(RestoreState(folder, manifest, rank));
  return manifest;
}

absl::StatusOr<std::optional<CheckpointManifest>> LoadNewestCheckpoint(
    const std::string& folder, const CheckpointRank& rank,
    const std::function<absl::StatusOr<bool>(bool mine)>& agree) {
  absl::Status damage;
  if (rank.rank == 0) {
    for (const std::string& path : ListIncomplete(folder)) {
      std::fprintf(stderr,
                   "checkpoint %s is incomplete: it has no %s; passed over\n",
                   path.c_str(), kManifestName);
    }
  }
  for (const CheckpointFolder& checkpoint : ListCheckpoints(folder)) {
    absl::StatusOr<CheckpointManifest> manifest =
        LoadCheckpoint(checkpoint.path, rank);
    bool whole = manifest.ok();
    if (rank.world_size > 1) {
      SG_ASSIGN_OR_RETURN(whole, agree(whole));
    }
    if (whole) return std::optional<CheckpointManifest>(*std::move(manifest));
    if (manifest.ok()) {
      std::fprintf(stderr,
                   "rank %d: checkpoint %s cannot be read by another rank; "
                   "trying the one before\n",
                   rank.rank, checkpoint.path.c_str());
      continue;
    }
    if (manifest.status().code() != absl::StatusCode::kDataLoss)
      return manifest.status();
    damage = manifest.status();
    std::fprintf(stderr,
                 "rank %d: checkpoint %s is damaged (%s); trying the one "
                 "before\n",
                 rank.rank, checkpoint.path.c_str(),
                 std::string(damage.message()).c_str());
  }
  if (!damage.ok()) {
    return absl::DataLossError(
        absl::StrCat("no checkpoint of ", folder, " can be read; the oldest: ",
                     damage.message(), "; start anew with --resume=never"));
  }
  return std::optional<CheckpointManifest>();
}

namespace {

// "7, 3": of the mix of sources, in order.
std::string SourceWeights(const DataSpec& data) {
  return absl::StrJoin(data.sources(), ", ",
                       [](std::string* out, const auto& source) {
                         absl::StrAppend(out, source.weight());
                       });
}

}  // namespace

absl::Status CheckContinues(const CheckpointManifest& manifest,
                            const TrainConfig& config) {
  const TrainConfig& saved = manifest.config();
  const auto differs = [&](absl::string_view field, const auto& before,
                           const auto& now) {
    return absl::FailedPreconditionError(absl::StrCat(
        field, " is ", now, ", but the checkpoint of step ", manifest.step(),
        " was made with ", before, "; set ", field, "=", before,
        ", or start anew with --resume=never"));
  };
  if (saved.optimizer().kind() != config.optimizer().kind()) {
    return differs("optimizer.kind",
                   OptimizerSpec::Kind_Name(saved.optimizer().kind()),
                   OptimizerSpec::Kind_Name(config.optimizer().kind()));
  }
  if (saved.run().seed() != config.run().seed())
    return differs("run.seed", saved.run().seed(), config.run().seed());
  if (saved.data().batch_size() != config.data().batch_size()) {
    return differs("data.batch_size", saved.data().batch_size(),
                   config.data().batch_size());
  }
  if (saved.data().sequence_length() != config.data().sequence_length()) {
    return differs("data.sequence_length", saved.data().sequence_length(),
                   config.data().sequence_length());
  }
  if (saved.data().mask_documents() != config.data().mask_documents()) {
    return differs("data.mask_documents",
                   saved.data().mask_documents() ? "true" : "false",
                   config.data().mask_documents() ? "true" : "false");
  }
  // Folders may have moved; in another mix another sequence would come next.
  const std::string weights = SourceWeights(saved.data());
  if (weights != SourceWeights(config.data())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data.sources have weights [", SourceWeights(config.data()),
        "], but the checkpoint of step ", manifest.step(), " was made with [",
        weights,
        "]; list the same sources, or start anew with "
        "--resume=never"));
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
