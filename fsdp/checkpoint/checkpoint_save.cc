#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/checkpoint_folder.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/checkpoint/shard_files.h"
#include "fsdp/checkpoint/snapshot.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

// What is written at a time of what a snapshot holds.
constexpr size_t kWriteBytes = 4 << 20;
// Beside the tensors: headers, the manifest.
constexpr int64_t kOverheadBytes = 1 << 20;
// Between two looks for the part of another rank.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(250);

// Writes one rank's files: what the snapshot holds, or, without one, what its
// executor does.
class RankWriter {
 public:
  RankWriter(const CheckpointRank& rank, const SaveOptions& options,
             SaveProgress* progress)
      : rank_(rank),
        options_(options),
        folder_(TemporaryCheckpoint(options.folder, options.step)),
        progress_(progress) {
    if (options.snapshot == nullptr) own_files_.emplace(*rank.plan, rank.rank);
  }

  // Returns the part of the manifest that describes them.
  absl::StatusOr<CheckpointManifest> Write() {
    SG_RETURN_IF_ERROR(MakeFolder(folder_));
    SG_RETURN_IF_ERROR(CheckRoom(files().data_bytes()));
    CheckpointManifest part = files().part();
    for (size_t i = 0; i < files().files().size(); ++i) {
      const ShardFiles::File& file = files().files()[i];
      SG_ASSIGN_OR_RETURN(
          const auto writer,
          SafetensorsWriter::Create(absl::StrCat(folder_, "/", file.name),
                                    file.header));
      SG_ASSIGN_OR_RETURN(const std::vector<ShardFiles::Sums> sums,
                          options_.snapshot != nullptr
                              ? WriteSnapshot(i, *writer)
                              : WriteShards(file, *writer));
      SG_RETURN_IF_ERROR(writer->Close());
      SG_RETURN_IF_ERROR(progress_->Wrote(0));
      for (size_t p = 0; p < file.pieces.size(); ++p) {
        const ShardFiles::Piece& piece = file.pieces[p];
        CheckpointPiece* described =
            part.mutable_tensors(piece.tensor)->mutable_pieces(piece.number);
        described->mutable_crc32c()->Add(sums[p].begin(), sums[p].end());
      }
    }
    return part;
  }

 private:
  const ShardFiles& files() const {
    return own_files_.has_value() ? *own_files_ : options_.snapshot->files();
  }

  // Each rank looks for its own part; rank 0 for all, which are alike.
  absl::Status CheckRoom(int64_t bytes) const {
    const int64_t needed =
        (rank_.rank == 0 ? bytes * rank_.plan->groups.shard : bytes) +
        kOverheadBytes;
    SG_ASSIGN_OR_RETURN(const int64_t free, options_.free_bytes != nullptr
                                                ? options_.free_bytes(folder_)
                                                : FreeBytes(folder_));
    if (free >= needed) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s has %.1f MB free, but the checkpoint takes %.1f MB; make room, or "
        "keep fewer with checkpoint.keep_last",
        options_.folder, free / 1e6, needed / 1e6));
  }

  // The data of a file, and their sums; here and below.
  absl::StatusOr<std::vector<ShardFiles::Sums>> WriteSnapshot(
      size_t file, SafetensorsWriter& writer) {
    absl::string_view data = options_.snapshot->Data(file);
    while (!data.empty()) {
      const absl::string_view piece = data.substr(0, kWriteBytes);
      SG_RETURN_IF_ERROR(writer.Append(piece));
      SG_RETURN_IF_ERROR(progress_->Wrote(static_cast<int64_t>(piece.size())));
      data.remove_prefix(piece.size());
    }
    return options_.snapshot->SumsOf(file);
  }

  absl::StatusOr<std::vector<ShardFiles::Sums>> WriteShards(
      const ShardFiles::File& file, SafetensorsWriter& writer) {
    std::vector<ShardFiles::Sums> sums;
    for (const ShardFiles::Piece& piece : file.pieces) {
      SG_ASSIGN_OR_RETURN(
          sums.emplace_back(),
          files().Read(piece, *rank_.executor, nullptr,
                       [&](absl::string_view block) -> absl::Status {
                         SG_RETURN_IF_ERROR(writer.Append(block));
                         return progress_->Wrote(
                             static_cast<int64_t>(block.size()));
                       }));
    }
    return sums;
  }

  const CheckpointRank& rank_;
  const SaveOptions& options_;
  const std::string folder_;
  SaveProgress* const progress_;
  std::optional<ShardFiles> own_files_;  // without a snapshot
};

// What a rank tells rank 0: its part or why there is none.
std::string PackPart(const absl::StatusOr<CheckpointManifest>& part) {
  if (part.ok()) return absl::StrCat("+", part->SerializeAsString());
  return absl::StrCat("-", part.status().message());
}

absl::StatusOr<CheckpointManifest> UnpackPart(const std::string& text) {
  CheckpointManifest part;
  if (!text.empty() && text[0] == '+' &&
      part.ParseFromArray(text.data() + 1, static_cast<int>(text.size()) - 1))
    return part;
  return absl::UnavailableError(
      text.empty() || text[0] != '-' ? "its part is garbled" : text.substr(1));
}

std::string PartKey(const SaveOptions& options, int rank) {
  return absl::StrCat(options.store_key, "/", rank);
}

// The part of another rank, as soon as it is there.
absl::StatusOr<std::string> ReceivePart(const SaveOptions& options, int rank,
                                        absl::Time deadline,
                                        SaveProgress* progress) {
  const std::string key = PartKey(options, rank);
  for (absl::Duration pause = kFirstPause;;
       pause = std::min(2 * pause, kLongestPause)) {
    SG_ASSIGN_OR_RETURN(const bool there, options.store->Check({key}));
    if (there) break;
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("it has not written its part within ",
                       absl::FormatDuration(options.timeout)));
    }
    SG_RETURN_IF_ERROR(progress->Pause(pause));
  }
  SG_ASSIGN_OR_RETURN(std::string text,
                      options.store->Get(key, absl::ZeroDuration()));
  SG_RETURN_IF_ERROR(options.store->Delete(key).status());
  return text;
}

// The parts of all ranks that write, by rank. `arrived`: whether no other rank
// is writing any more. After an error the others are waited for all the same.
absl::StatusOr<std::vector<CheckpointManifest>> ReceiveParts(
    const SaveOptions& options, absl::StatusOr<CheckpointManifest> own,
    int writers, SaveProgress* progress, bool* arrived) {
  const absl::Time deadline = absl::Now() + options.timeout;
  absl::Status problem = own.status();
  std::vector<CheckpointManifest> parts;
  if (own.ok()) parts.push_back(*std::move(own));
  *arrived = true;
  for (int rank = 1; rank < writers; ++rank) {
    const absl::StatusOr<std::string> text =
        ReceivePart(options, rank, deadline, progress);
    *arrived = *arrived && text.ok();
    absl::StatusOr<CheckpointManifest> part =
        text.ok() ? UnpackPart(*text)
                  : absl::StatusOr<CheckpointManifest>(text.status());
    if (!part.ok() && problem.ok()) {
      problem = absl::Status(
          part.status().code(),
          absl::StrCat("rank ", rank, ": ", part.status().message()));
    }
    if (part.ok()) parts.push_back(*std::move(part));
  }
  if (!problem.ok()) return problem;
  return parts;
}

absl::Status SetState(const CheckpointRank& rank, const Snapshot* snapshot,
                      CheckpointManifest* manifest) {
  StepState state;
  if (snapshot != nullptr) {
    state = snapshot->state();
  } else {
    SG_RETURN_IF_ERROR(
        rank.executor->ReadBuffer(rank.plan->state, 0, &state, sizeof(state)));
  }
  CheckpointState* saved = manifest->mutable_state();
  saved->set_run_step(manifest->step());
  saved->set_optimizer_step(state.optimizer_step);
  for (int g = 0; g < StepState::kMaxGroups; ++g) {
    saved->add_beta1_power(state.beta1_power[g]);
    saved->add_beta2_power(state.beta2_power[g]);
  }
  saved->set_loss_scale(state.loss_scale);
  saved->set_growth_counter(state.growth_counter);
  return absl::OkStatus();
}

// Adds the parts of the ranks.
absl::Status MergeParts(std::vector<CheckpointManifest> parts,
                        CheckpointManifest* manifest) {
  std::map<std::string, CheckpointTensor*> tensors;
  for (CheckpointManifest& part : parts) {
    const int first_file = manifest->files_size();
    for (CheckpointFile& file : *part.mutable_files())
      *manifest->add_files() = std::move(file);
    for (CheckpointTensor& from : *part.mutable_tensors()) {
      CheckpointTensor*& to = tensors[from.name()];
      if (to == nullptr) {
        to = manifest->add_tensors();
        to->set_name(from.name());
        to->set_dtype(from.dtype());
        *to->mutable_shape() = from.shape();
      }
      for (CheckpointPiece& piece : *from.mutable_pieces()) {
        piece.set_file(piece.file() + first_file);
        *to->add_pieces() = std::move(piece);
      }
    }
  }
  return CheckPieces(*manifest);
}

// The manifest, last, and the folder's name.
absl::Status Complete(const CheckpointRank& rank, const SaveOptions& options,
                      std::vector<CheckpointManifest> parts) {
  const std::string temporary =
      TemporaryCheckpoint(options.folder, options.step);
  CheckpointManifest manifest;
  manifest.set_version(kManifestVersion);
  manifest.set_step(options.step);
  manifest.set_next_sequence(options.step * rank.config->data().batch_size());
  manifest.set_world_size(rank.world_size);
  manifest.set_plan_hash(rank.plan->plan.hash);
  *manifest.mutable_config() = *rank.config;
  manifest.mutable_extra()->insert(options.extra.begin(), options.extra.end());
  manifest.set_chunk_bytes(parts[0].chunk_bytes());
  SG_RETURN_IF_ERROR(SetState(rank, options.snapshot, &manifest));
  SG_RETURN_IF_ERROR(MergeParts(std::move(parts), &manifest));
  SG_RETURN_IF_ERROR(RemoveUnlisted(temporary, manifest));
  SG_RETURN_IF_ERROR(
      WriteManifest(absl::StrCat(temporary, "/", kManifestName), manifest));
  return PublishCheckpoint(options.folder, options.step);
}

}  // namespace

absl::Status SaveCheckpoint(const CheckpointRank& rank,
                            const SaveOptions& options) {
  SG_CHECK(rank.world_size == 1 || options.store != nullptr)
      << "a world of " << rank.world_size;
  const int writers = rank.plan->groups.shard;  // replicas hold the same
  if (rank.rank >= writers) return absl::OkStatus();
  SaveProgress unseen;
  SaveProgress* progress =
      options.progress != nullptr ? options.progress : &unseen;
  progress->Begin();
  absl::StatusOr<CheckpointManifest> part =
      RankWriter(rank, options, progress).Write();
  if (rank.rank != 0) {
    const absl::Status told =
        options.store->Set(PartKey(options, rank.rank), PackPart(part));
    return part.ok() ? told : part.status();
  }
  bool arrived = false;
  absl::StatusOr<std::vector<CheckpointManifest>> parts =
      ReceiveParts(options, std::move(part), writers, progress, &arrived);
  const absl::Status saved =
      parts.ok() ? Complete(rank, options, *std::move(parts)) : parts.status();
  if (!saved.ok()) {
    // Nobody writes into it any more: what is there only takes room.
    if (arrived) {
      RemoveAll(TemporaryCheckpoint(options.folder, options.step))
          .IgnoreError();
    }
    return saved;
  }
  SG_RETURN_IF_ERROR(PruneCheckpoints(options.folder, options.step,
                                      rank.config->checkpoint().keep_last(),
                                      rank.config->checkpoint().keep_every()));
  ClearInterruptedSaves(options.folder);
  return absl::OkStatus();
}

}  // namespace shardgraph
