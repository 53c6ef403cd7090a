#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "fsdp/checkpoint/boxes.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/checkpoint_folder.h"
#include "fsdp/checkpoint/checkpoint_names.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/files/crc32c.h"
#include "fsdp/files/json.h"
#include "fsdp/train/shard_writer.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

// What a checksum covers.
constexpr int64_t kChunkBytes = 4 << 20;
// What is read, summed and written at a time: it stays in a core's cache.
constexpr int64_t kBlockElements = (256 << 10) / 4;
// Beside the tensors: headers, the manifest.
constexpr int64_t kOverheadBytes = 1 << 20;
// Between two looks for the part of another rank.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(250);

// Writes one rank's files and the part of the manifest that describes them.
class RankWriter {
 public:
  RankWriter(const CheckpointRank& rank, const SaveOptions& options,
             SaveProgress* progress)
      : rank_(rank),
        options_(options),
        folder_(TemporaryCheckpoint(options.folder, options.step)),
        progress_(progress),
        shards_(*rank.plan, rank.rank,
                options.source != nullptr ? *options.source : *rank.executor) {
    part_.set_version(kManifestVersion);
    part_.set_chunk_bytes(kChunkBytes);
  }

  absl::StatusOr<CheckpointManifest> Write() {
    SG_RETURN_IF_ERROR(MakeFolder(folder_));
    size_t files = 0;
    int64_t bytes = 0;
    for (const HeldRange& held : shards_.Held()) {
      std::vector<Box> boxes =
          BoxesOfRange(held.parameter->shape, held.begin, held.elements);
      files = std::max(files, boxes.size());
      for (ShardKind kind : KindsOf(rank_.plan->units[held.unit])) {
        held_.push_back({held, kind, boxes});
        bytes += held.elements * SizeOf(DType::kF32);
      }
    }
    SG_RETURN_IF_ERROR(CheckRoom(bytes));
    for (const Held& held : held_) {
      CheckpointTensor* tensor = part_.add_tensors();
      tensor->set_name(
          CheckpointTensorName(held.kind, held.range.parameter->name));
      tensor->set_dtype(std::string(DTypeName(DType::kF32)));
      for (int64_t dim : held.range.parameter->shape) tensor->add_shape(dim);
    }
    for (size_t i = 0; i < files; ++i) SG_RETURN_IF_ERROR(WriteFile(i, files));
    return std::move(part_);
  }

 private:
  struct Held {
    HeldRange range;
    ShardKind kind;
    std::vector<Box> boxes;
  };

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

  // The file with the box `index` of each range that has so many.
  absl::Status WriteFile(size_t index, size_t files) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    std::map<std::string, size_t> held_of;
    nlohmann::json offsets = nlohmann::json::object();
    for (size_t h = 0; h < held_.size(); ++h) {
      if (index >= held_[h].boxes.size()) continue;
      const Box& box = held_[h].boxes[index];
      const std::string& name = part_.tensors(h).name();
      tensors.push_back({name, DType::kF32, box.size});
      offsets[name]["saved_offsets"] =
          std::vector<int64_t>(box.offset.begin(), box.offset.end());
      held_of[name] = h;
    }
    const std::string name =
        absl::StrFormat("shard-%05d-model-%05d-of-%05d.safetensors", rank_.rank,
                        index + 1, files);
    const std::string path = absl::StrCat(folder_, "/", name);
    SG_ASSIGN_OR_RETURN(
        const auto writer,
        SafetensorsWriter::Create(path, tensors,
                                  {{"DCP_SHARDING_INFO", JsonText(offsets)},
                                   {"DCP_VERSION", "1.0"},
                                   {"format", "pt"}}));
    for (const SafetensorsEntry& entry : writer->entries()) {
      const size_t h = held_of.at(entry.name);
      CheckpointPiece* piece = part_.mutable_tensors(h)->add_pieces();
      piece->set_file(part_.files_size());
      SG_RETURN_IF_ERROR(WriteBox(held_[h], index, piece, *writer));
    }
    SG_RETURN_IF_ERROR(writer->Close());
    SG_RETURN_IF_ERROR(progress_->Wrote(0));
    std::error_code error;
    CheckpointFile* file = part_.add_files();
    file->set_name(name);
    file->set_bytes(
        static_cast<int64_t>(std::filesystem::file_size(path, error)));
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot read ", path, ": ", error.message()));
    }
    file->set_header_bytes(static_cast<int64_t>(writer->header().size()));
    file->set_header_crc32c(Crc32c(writer->header()));
    return absl::OkStatus();
  }

  absl::Status WriteBox(const Held& held, size_t index, CheckpointPiece* piece,
                        SafetensorsWriter& writer) {
    // Boxes of a range lie back to back in it.
    int64_t begin = 0;
    for (size_t i = 0; i < index; ++i) begin += held.boxes[i].numel();
    const Box& box = held.boxes[index];
    for (int64_t offset : box.offset) piece->add_offset(offset);
    for (int64_t size : box.size) piece->add_size(size);
    const int64_t end = begin + box.numel();
    uint32_t crc = 0;
    int64_t chunk = 0;  // bytes that crc covers
    while (begin < end) {
      values_.resize(std::min(kBlockElements, end - begin));
      SG_RETURN_IF_ERROR(
          shards_.Read(held.range, begin, absl::MakeSpan(values_), held.kind));
      const absl::string_view bytes(
          reinterpret_cast<const char*>(values_.data()),
          values_.size() * sizeof(float));
      crc = ExtendCrc32c(crc, bytes);
      SG_RETURN_IF_ERROR(writer.Append(bytes));
      begin += static_cast<int64_t>(values_.size());
      chunk += static_cast<int64_t>(bytes.size());
      if (chunk < kChunkBytes && begin < end) continue;
      piece->add_crc32c(crc);
      SG_RETURN_IF_ERROR(progress_->Wrote(chunk));
      crc = 0;
      chunk = 0;
    }
    return absl::OkStatus();
  }

  const CheckpointRank& rank_;
  const SaveOptions& options_;
  const std::string folder_;
  SaveProgress* const progress_;
  ShardReader shards_;
  std::vector<Held> held_;
  CheckpointManifest part_;  // tensors as held_
  std::vector<float> values_;
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

absl::Status SetState(const CheckpointRank& rank, BufferReader& source,
                      CheckpointManifest* manifest) {
  StepState state;
  SG_RETURN_IF_ERROR(
      source.ReadBuffer(rank.plan->state, 0, &state, sizeof(state)));
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
  manifest.set_chunk_bytes(kChunkBytes);
  SG_RETURN_IF_ERROR(SetState(
      rank, options.source != nullptr ? *options.source : *rank.executor,
      &manifest));
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
