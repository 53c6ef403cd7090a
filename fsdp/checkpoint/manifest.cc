#include "fsdp/checkpoint/manifest.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "fsdp/files/crc32c.h"
#include "fsdp/files/durable_file.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

constexpr char kChecksum[] = "# crc32c ";
constexpr char kPrefix[] = "step_";
// Messages in messages; the parser recurses. A model in a config has a few.
constexpr int kMaxNesting = 200;

std::string ChecksumLine(absl::string_view text) {
  return absl::StrFormat("%s%08x\n", kChecksum, Crc32c(text));
}

absl::Status Damaged(absl::string_view path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

// What the parser says first.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (text_.empty())
      text_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Elements of a tensor of these sizes; nullopt: negative, or more than the
// bytes of any file.
std::optional<int64_t> CountOf(
    const google::protobuf::RepeatedField<int64_t>& sizes) {
  constexpr int64_t kMost = int64_t{1} << 59;
  int64_t count = 1;
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size == 0) {
      empty = true;
    } else if (size < 0 || __builtin_mul_overflow(count, size, &count) ||
               count > kMost) {
      return std::nullopt;
    }
  }
  return empty ? 0 : count;
}

// N of "step_N".
std::optional<int64_t> StepOfName(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kPrefix) ||
      name.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(name, &step))
    return std::nullopt;
  return step;
}

// Folders step_N with or without a manifest, newest first.
std::vector<CheckpointFolder> ListSteps(const std::string& folder,
                                        bool complete) {
  std::vector<CheckpointFolder> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto step = StepOfName(entry.path().filename().string());
    std::error_code ignored;
    if (!step.has_value() ||
        fs::exists(entry.path() / kManifestName, ignored) != complete)
      continue;
    found.push_back({*step, entry.path().string()});
  }
  std::sort(found.begin(), found.end(),
            [](const CheckpointFolder& a, const CheckpointFolder& b) {
              return a.step > b.step;
            });
  return found;
}

}  // namespace

absl::Status WriteManifest(const std::string& path,
                           const CheckpointManifest& manifest) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  if (!printer.PrintToString(manifest, &text))
    return absl::InternalError("cannot print the manifest");
  text += ChecksumLine(text);
  return WriteDurableFile(path, text);
}

absl::StatusOr<CheckpointManifest> ReadManifestFile(const std::string& path) {
  const absl::StatusOr<std::string> file = ReadWholeFile(path);
  if (!file.ok()) return absl::DataLossError(file.status().message());
  return ParseManifest(path, *file);
}

absl::StatusOr<CheckpointManifest> ParseManifest(const std::string& path,
                                                 const std::string& file) {
  const absl::string_view text = file;
  const size_t end = text.rfind(kChecksum);
  if (end == absl::string_view::npos)
    return Damaged(path, "the checksum at its end is missing");
  if (text.substr(end) != ChecksumLine(text.substr(0, end)))
    return Damaged(path, "its checksum is wrong: the file is damaged");
  CheckpointManifest manifest;
  google::protobuf::TextFormat::Parser parser;
  // A newer version may have fields that this one does not know; it is named
  // below.
  parser.AllowUnknownField(true);
  parser.SetRecursionLimit(kMaxNesting);
  FirstError error;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(file, &manifest))
    return Damaged(path, absl::StrCat("it cannot be parsed: ", error.text()));
  if (manifest.version() != kManifestVersion) {
    return Damaged(
        path, absl::StrCat("its version is ", manifest.version(),
                           "; this program reads version ", kManifestVersion));
  }
  return manifest;
}

Box BoxOf(const CheckpointPiece& piece) {
  Box box;
  box.offset.assign(piece.offset().begin(), piece.offset().end());
  box.size.assign(piece.size().begin(), piece.size().end());
  return box;
}

absl::Status CheckPieces(const CheckpointManifest& manifest) {
  if (manifest.chunk_bytes() < 8 || manifest.chunk_bytes() % 8 != 0)
    return absl::DataLossError(
        absl::StrCat("chunk_bytes is ", manifest.chunk_bytes()));
  for (const CheckpointTensor& tensor : manifest.tensors()) {
    const auto wrong = [&](absl::string_view what) {
      return absl::DataLossError(
          absl::StrCat("tensor ", tensor.name(), " [",
                       absl::StrJoin(tensor.shape(), ", "), "]: ", what));
    };
    DType dtype;
    if (!ParseDType(tensor.dtype(), &dtype))
      return wrong(absl::StrCat("unknown dtype ", tensor.dtype()));
    const std::optional<int64_t> numel = CountOf(tensor.shape());
    if (!numel.has_value()) return wrong("sizes are negative or too large");
    int64_t covered = 0;
    for (const CheckpointPiece& piece : tensor.pieces()) {
      if (piece.file() < 0 || piece.file() >= manifest.files_size())
        return wrong(absl::StrCat("there is no file ", piece.file()));
      bool inside = piece.offset_size() == tensor.shape_size() &&
                    piece.size_size() == tensor.shape_size();
      for (int d = 0; inside && d < tensor.shape_size(); ++d) {
        inside = piece.offset(d) >= 0 && piece.size(d) > 0 &&
                 piece.size(d) <= tensor.shape(d) - piece.offset(d);
      }
      if (!inside) {
        return wrong(
            absl::StrCat("the piece at [", absl::StrJoin(piece.offset(), ", "),
                         "] of size [", absl::StrJoin(piece.size(), ", "),
                         "] does not lie inside"));
      }
      const int64_t elements = BoxOf(piece).numel();
      const int64_t bytes = elements * SizeOf(dtype);
      if (piece.crc32c_size() !=
          bytes / manifest.chunk_bytes() +
              (bytes % manifest.chunk_bytes() != 0 ? 1 : 0)) {
        return wrong(absl::StrCat(piece.crc32c_size(), " checksums for ", bytes,
                                  " bytes"));
      }
      covered += elements;
      if (covered > *numel) break;  // before the sum overflows
    }
    if (covered != *numel) {
      return wrong(
          absl::StrCat("its pieces hold ", covered, " elements of ", *numel));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> ReadCheckpointManifest(
    const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  SG_ASSIGN_OR_RETURN(CheckpointManifest manifest, ReadManifestFile(path));
  const std::optional<int64_t> step =
      StepOfName(fs::path(folder).filename().string());
  if (step.has_value() && *step != manifest.step()) {
    return Damaged(path, absl::StrCat("it is of step ", manifest.step(),
                                      ": the checkpoint of another step"));
  }
  for (const CheckpointFile& file : manifest.files()) {
    const std::string name = absl::StrCat(folder, "/", file.name());
    std::error_code error;
    const auto bytes = fs::file_size(name, error);
    if (error) {
      return Damaged(
          name, absl::StrCat("the manifest names it, but: ", error.message()));
    }
    if (static_cast<int64_t>(bytes) != file.bytes()) {
      return Damaged(
          name, absl::StrCat("it has ", bytes, " bytes, but the manifest says ",
                             file.bytes()));
    }
  }
  if (const absl::Status pieces = CheckPieces(manifest); !pieces.ok())
    return Damaged(path, pieces.message());
  return manifest;
}

std::string CheckpointName(int64_t step) {
  return absl::StrFormat("%s%07d", kPrefix, step);
}

std::vector<CheckpointFolder> ListCheckpoints(const std::string& folder) {
  return ListSteps(folder, /*complete=*/true);
}

std::vector<std::string> ListIncomplete(const std::string& folder) {
  std::vector<std::string> paths;
  for (CheckpointFolder& found : ListSteps(folder, /*complete=*/false))
    paths.push_back(std::move(found.path));
  return paths;
}

absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::path(path) / kManifestName, error)) return path;
  const std::string nested = absl::StrCat(path, "/checkpoints");
  for (const std::string& folder : {path, nested}) {
    const std::vector<CheckpointFolder> found = ListCheckpoints(folder);
    if (!found.empty()) return found[0].path;
  }
  return absl::NotFoundError(absl::StrCat(
      "there is no checkpoint in ", path, ": looked for ", kManifestName, ", ",
      kPrefix, "*/", kManifestName, " and checkpoints/", kPrefix, "*/",
      kManifestName,
      "; give a checkpoint, a folder of checkpoints or a run directory"));
}

}  // namespace shardgraph
