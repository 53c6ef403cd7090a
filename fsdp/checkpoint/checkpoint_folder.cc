#include "fsdp/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/files/durable_file.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

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

// Entries of the folder, sorted; none when it cannot be read.
std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string TemporaryCheckpoint(const std::string& folder, int64_t step) {
  return absl::StrCat(folder, "/", CheckpointName(step), kTemporary);
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? FileError("make the folder", path, error) : absl::OkStatus();
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? FileError("remove", path, error) : absl::OkStatus();
}

absl::StatusOr<int64_t> FreeBytes(const std::string& path) {
  struct statvfs info = {};
  if (statvfs(path.c_str(), &info) != 0) {
    return FileError("look at", path,
                     std::error_code(errno, std::generic_category()));
  }
  return static_cast<int64_t>(info.f_bavail) *
         static_cast<int64_t>(info.f_frsize);
}

absl::Status PublishCheckpoint(const std::string& folder, int64_t step) {
  const std::string temporary = TemporaryCheckpoint(folder, step);
  const std::string path = absl::StrCat(folder, "/", CheckpointName(step));
  SG_RETURN_IF_ERROR(SyncFolder(temporary));
  std::error_code error;
  std::string replaced;
  if (!fs::exists(path, error)) {
    SG_RETURN_IF_ERROR(Rename(temporary, path));
  } else if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(),
                       RENAME_EXCHANGE) == 0) {
    replaced = temporary;
  } else {  // a file system that cannot exchange
    replaced = absl::StrCat(path, kReplaced);
    SG_RETURN_IF_ERROR(RemoveAll(replaced));
    SG_RETURN_IF_ERROR(Rename(path, replaced));
    SG_RETURN_IF_ERROR(Rename(temporary, path));
  }
  SG_RETURN_IF_ERROR(SyncFolder(folder));
  return replaced.empty() ? absl::OkStatus() : RemoveAll(replaced);
}

absl::Status RemoveUnlisted(const std::string& path,
                            const CheckpointManifest& manifest) {
  std::set<std::string> listed;
  for (const CheckpointFile& file : manifest.files())
    listed.insert(file.name());
  for (const std::string& name : NamesIn(path)) {
    if (listed.count(name) == 0)
      SG_RETURN_IF_ERROR(RemoveAll(absl::StrCat(path, "/", name)));
  }
  return absl::OkStatus();
}

absl::Status PruneCheckpoints(const std::string& folder, int64_t step,
                              int64_t keep_last, int64_t keep_every) {
  int64_t kept = 0;
  for (const CheckpointFolder& checkpoint : ListCheckpoints(folder)) {
    if (keep_last == 0 || checkpoint.step > step || ++kept <= keep_last ||
        (keep_every > 0 && checkpoint.step % keep_every == 0))
      continue;
    const std::string removed = absl::StrCat(checkpoint.path, kReplaced);
    SG_RETURN_IF_ERROR(RemoveAll(removed));
    SG_RETURN_IF_ERROR(Rename(checkpoint.path, removed));
    SG_RETURN_IF_ERROR(RemoveAll(removed));
  }
  return absl::OkStatus();
}

std::vector<std::string> ClearInterruptedSaves(const std::string& folder) {
  std::vector<std::string> said;
  for (const std::string& name : NamesIn(folder)) {
    const bool temporary = absl::EndsWith(name, kTemporary);
    if (!absl::StartsWith(name, "step_") ||
        !(temporary || absl::EndsWith(name, kReplaced)))
      continue;
    const std::string path = absl::StrCat(folder, "/", name);
    const absl::StatusOr<CheckpointManifest> manifest =
        ReadCheckpointManifest(path);
    std::error_code error;
    // Its manifest is written when all else is on the disk. Also one that was
    // moved out of the way of another that never came.
    if (manifest.ok()) {
      const std::string whole =
          absl::StrCat(folder, "/", CheckpointName(manifest->step()));
      if (!fs::exists(whole, error)) {
        if (Rename(path, whole).ok()) {
          said.push_back(
              absl::StrCat("checkpoint ", whole,
                           " was complete, but not under its name yet"));
        }
        continue;
      }
    }
    if (RemoveAll(path).ok() && temporary) {
      said.push_back(absl::StrCat(
          path, ": removed, an interrupted save has left it incomplete"));
    }
  }
  return said;
}

}  // namespace shardgraph
