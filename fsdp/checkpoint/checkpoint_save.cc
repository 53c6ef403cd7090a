#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdp/checkpoint/boxes.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/checkpoint_names.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/files/crc32c.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "fsdp/train/shard_writer.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

// What a checksum covers, and what the host holds at a time.
constexpr int64_t kChunkBytes = 4 << 20;
constexpr int64_t kChunkElements = kChunkBytes / 4;
constexpr char kTemporary[] = ".tmp";
constexpr char kReplaced[] = ".old";

absl::Status FileError(absl::string_view what, const std::string& path,
                       const std::error_code& error) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " ", path, ": ", error.message()));
}

absl::Status Rename(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  return error ? FileError("rename", absl::StrCat(from, " to ", to), error)
               : absl::OkStatus();
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? FileError("remove", path, error) : absl::OkStatus();
}

std::string PartPath(const std::string& folder, int rank) {
  return absl::StrFormat("%s/rank_%05d.part", folder, rank);
}

// Writes one rank's files and the part of the manifest that describes them.
class RankWriter {
 public:
  RankWriter(const CheckpointRank& rank, std::string folder)
      : rank_(rank),
        folder_(std::move(folder)),
        shards_(*rank.plan, rank.rank, *rank.executor) {
    part_.set_version(kManifestVersion);
    part_.set_chunk_bytes(kChunkBytes);
  }

  absl::Status Write() {
    size_t files = 0;
    for (const HeldRange& held : shards_.Held()) {
      std::vector<Box> boxes =
          BoxesOfRange(held.parameter->shape, held.begin, held.elements);
      files = std::max(files, boxes.size());
      for (ShardKind kind : KindsOf(rank_.plan->units[held.unit]))
        held_.push_back({held, kind, boxes});
    }
    for (const Held& held : held_) {
      CheckpointTensor* tensor = part_.add_tensors();
      tensor->set_name(
          CheckpointTensorName(held.kind, held.range.parameter->name));
      tensor->set_dtype(std::string(DTypeName(DType::kF32)));
      for (int64_t dim : held.range.parameter->shape) tensor->add_shape(dim);
    }
    for (size_t i = 0; i < files; ++i) SG_RETURN_IF_ERROR(WriteFile(i, files));
    return WriteManifest(PartPath(folder_, rank_.rank), part_);
  }

 private:
  struct Held {
    HeldRange range;
    ShardKind kind;
    std::vector<Box> boxes;
  };

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
    std::error_code error;
    CheckpointFile* file = part_.add_files();
    file->set_name(name);
    file->set_bytes(static_cast<int64_t>(fs::file_size(path, error)));
    return error ? FileError("read", path, error) : absl::OkStatus();
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
    for (; begin < end; begin += kChunkElements) {
      values_.resize(std::min(kChunkElements, end - begin));
      SG_RETURN_IF_ERROR(
          shards_.Read(held.range, begin, absl::MakeSpan(values_), held.kind));
      const absl::string_view bytes(
          reinterpret_cast<const char*>(values_.data()),
          values_.size() * sizeof(float));
      piece->add_crc32c(Crc32c(bytes));
      SG_RETURN_IF_ERROR(writer.Append(bytes));
    }
    return absl::OkStatus();
  }

  const CheckpointRank& rank_;
  const std::string folder_;
  ShardWriter shards_;
  std::vector<Held> held_;
  CheckpointManifest part_;  // tensors as held_
  std::vector<float> values_;
};

absl::Status SetState(const CheckpointRank& rank,
                      CheckpointManifest* manifest) {
  StepState state;
  SG_RETURN_IF_ERROR(
      rank.executor->ReadBuffer(rank.plan->state, 0, &state, sizeof(state)));
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
absl::Status MergeParts(const std::string& folder, int ranks,
                        CheckpointManifest* manifest) {
  std::map<std::string, CheckpointTensor*> tensors;
  for (int r = 0; r < ranks; ++r) {
    SG_ASSIGN_OR_RETURN(CheckpointManifest part,
                        ReadManifestFile(PartPath(folder, r)));
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

// Removes what an interrupted save of another world size may have left.
absl::Status RemoveUnlisted(const std::string& folder,
                            const CheckpointManifest& manifest) {
  std::set<std::string> listed;
  for (const CheckpointFile& file : manifest.files())
    listed.insert(file.name());
  std::vector<std::string> others;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (listed.count(entry.path().filename().string()) == 0)
      others.push_back(entry.path().string());
  }
  if (error) return FileError("list", folder, error);
  for (const std::string& other : others) SG_RETURN_IF_ERROR(RemoveAll(other));
  return absl::OkStatus();
}

// Puts the finished folder under its name, in place of one that was there.
absl::Status Publish(const std::string& temporary, const std::string& path,
                     const std::string& parent) {
  SG_RETURN_IF_ERROR(SyncFolder(temporary));
  std::error_code error;
  const bool replaces = fs::exists(path, error);
  const std::string replaced = absl::StrCat(path, kReplaced);
  if (replaces) {
    SG_RETURN_IF_ERROR(RemoveAll(replaced));
    SG_RETURN_IF_ERROR(Rename(path, replaced));
  }
  SG_RETURN_IF_ERROR(Rename(temporary, path));
  SG_RETURN_IF_ERROR(SyncFolder(parent));
  return replaces ? RemoveAll(replaced) : absl::OkStatus();
}

// Removes checkpoints beyond the newest `keep` up to `step`, and what
// interrupted saves and removals have left.
absl::Status Prune(const std::string& folder, int64_t step, int keep) {
  int kept = 0;
  for (const CheckpointFolder& checkpoint : ListCheckpoints(folder)) {
    if (keep == 0 || checkpoint.step > step || ++kept <= keep) continue;
    // Renamed first: what is half removed must not look like a checkpoint.
    SG_RETURN_IF_ERROR(RemoveAll(absl::StrCat(checkpoint.path, kReplaced)));
    SG_RETURN_IF_ERROR(
        Rename(checkpoint.path, absl::StrCat(checkpoint.path, kReplaced)));
  }
  std::vector<std::string> stale;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "step_") &&
        (absl::EndsWith(name, kTemporary) || absl::EndsWith(name, kReplaced)))
      stale.push_back(entry.path().string());
  }
  for (const std::string& path : stale) SG_RETURN_IF_ERROR(RemoveAll(path));
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveCheckpoint(const CheckpointRank& rank,
                            const SaveOptions& options) {
  const std::string path =
      absl::StrCat(options.folder, "/", CheckpointName(options.step));
  const std::string temporary = absl::StrCat(path, kTemporary);
  std::error_code error;
  fs::create_directories(temporary, error);
  if (error) return FileError("make the folder", temporary, error);

  const int writers = rank.plan->groups.shard;  // replicas hold the same
  if (rank.rank < writers)
    SG_RETURN_IF_ERROR(RankWriter(rank, temporary).Write());
  if (rank.world_size > 1) {
    SG_CHECK(options.barrier != nullptr) << "a world of " << rank.world_size;
    SG_RETURN_IF_ERROR(options.barrier());
  }
  if (rank.rank != 0) return absl::OkStatus();

  CheckpointManifest manifest;
  manifest.set_version(kManifestVersion);
  manifest.set_step(options.step);
  manifest.set_next_sequence(options.step * rank.config->data().batch_size());
  manifest.set_world_size(rank.world_size);
  manifest.set_plan_hash(rank.plan->plan.hash);
  *manifest.mutable_config() = *rank.config;
  manifest.mutable_extra()->insert(options.extra.begin(), options.extra.end());
  manifest.set_chunk_bytes(kChunkBytes);
  SG_RETURN_IF_ERROR(SetState(rank, &manifest));
  SG_RETURN_IF_ERROR(MergeParts(temporary, writers, &manifest));
  SG_RETURN_IF_ERROR(RemoveUnlisted(temporary, manifest));
  SG_RETURN_IF_ERROR(
      WriteManifest(absl::StrCat(temporary, "/", kManifestName), manifest));
  SG_RETURN_IF_ERROR(Publish(temporary, path, options.folder));
  return Prune(options.folder, options.step,
               rank.config->checkpoint().keep_last());
}

}  // namespace shardgraph
