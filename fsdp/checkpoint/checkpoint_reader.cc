#include "fsdp/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/checkpoint/boxes.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/files/crc32c.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int64_t kAtOnce = 256 << 10;  // bytes that are handed out

}  // namespace

CheckpointReader::CheckpointReader(std::string folder,
                                   const CheckpointManifest& manifest)
    : folder_(std::move(folder)), manifest_(manifest) {
  for (const CheckpointTensor& tensor : manifest.tensors())
    tensors_[tensor.name()] = &tensor;
  files_.resize(manifest.files_size());
}

const CheckpointTensor* CheckpointReader::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

absl::Status CheckpointReader::Read(
    const CheckpointTensor& tensor, int64_t begin, int64_t elements,
    absl::FunctionRef<absl::Status(int64_t first, DType dtype,
                                   absl::string_view bytes)>
        take) {
  const Dims shape(tensor.shape().begin(), tensor.shape().end());
  int64_t found = 0;
  for (const CheckpointPiece& piece : tensor.pieces()) {
    Source source;
    SG_RETURN_IF_ERROR(ForEachRun(
        shape, BoxOf(piece),
        [&](int64_t in_tensor, int64_t in_box, int64_t count) -> absl::Status {
          const int64_t from = std::max(in_tensor, begin);
          const int64_t to = std::min(in_tensor + count, begin + elements);
          if (from >= to) return absl::OkStatus();
          if (source.entry == nullptr)
            SG_RETURN_IF_ERROR(Open(tensor, piece, &source));
          found += to - from;
          // Chunk by chunk, each verified before it is handed out.
          const DType dtype = *source.entry->dtype;
          const int64_t size = SizeOf(dtype);
          const int64_t chunk_elements = manifest_.chunk_bytes() / size;
          for (int64_t done = 0; done < to - from;) {
            const int64_t at = in_box + from - in_tensor + done;
            const int64_t chunk = at / chunk_elements;
            const int64_t n = std::min({to - from - done, kAtOnce / size,
                                        (chunk + 1) * chunk_elements - at});
            SG_RETURN_IF_ERROR(Verify(piece, chunk, &source));
            SG_RETURN_IF_ERROR(take(from - begin + done, dtype,
                                    source.data.substr(at * size, n * size)));
            done += n;
          }
          return absl::OkStatus();
        }));
    if (source.entry != nullptr) source.file->Release(*source.entry);
  }
  if (found == elements) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(folder_, ": tensor ", tensor.name(),
                                          " has ", found, " elements in [",
                                          begin, ", ", begin + elements, ")"));
}

absl::Status CheckpointReader::Open(const CheckpointTensor& tensor,
                                    const CheckpointPiece& piece,
                                    Source* source) {
  auto& file = files_[piece.file()];
  if (file == nullptr) {
    const CheckpointFile& listed = manifest_.files(piece.file());
    auto opened =
        SafetensorsFile::Open(absl::StrCat(folder_, "/", listed.name()));
    if (!opened.ok()) return absl::DataLossError(opened.status().message());
    const absl::string_view header = (*opened)->Header();
    if (static_cast<int64_t>(header.size()) != listed.header_bytes() ||
        Crc32c(header) != listed.header_crc32c()) {
      return absl::DataLossError(
          absl::StrCat((*opened)->path(),
                       ": the checksum of its header is wrong: the file is "
                       "damaged, or of another checkpoint"));
    }
    file = *std::move(opened);
    file->ReleaseHeader();
  }
  source->file = file.get();
  source->entry = file->Find(tensor.name());
  if (source->entry == nullptr || source->entry->shape != BoxOf(piece).size ||
      source->entry->dtype_name != tensor.dtype()) {
    return absl::DataLossError(
        absl::StrCat(file->path(), ": tensor ", tensor.name(),
                     " is not there as the manifest says: ", tensor.dtype(),
                     "[", absl::StrJoin(piece.size(), ", "), "]"));
  }
  if (!IsFloating(*source->entry->dtype)) {
    return absl::DataLossError(absl::StrCat(file->path(), ": tensor ",
                                            tensor.name(), " has dtype ",
                                            tensor.dtype()));
  }
  source->data = file->Data(*source->entry);
  return absl::OkStatus();
}

absl::Status CheckpointReader::Verify(const CheckpointPiece& piece,
                                      int64_t chunk, Source* source) const {
  if (chunk == source->verified) return absl::OkStatus();
  const int64_t chunk_bytes = manifest_.chunk_bytes();
  if (source->verified >= 0) {
    source->file->Release(
        *source->entry, source->verified * chunk_bytes,
        std::min<int64_t>((source->verified + 1) * chunk_bytes,
                          source->data.size()));
  }
  const absl::string_view bytes =
      source->data.substr(chunk * chunk_bytes, chunk_bytes);
  if (Crc32c(bytes) != piece.crc32c(chunk)) {
    return absl::DataLossError(absl::StrCat(
        source->file->path(), ": tensor ", source->entry->name,
        ": the checksum of bytes [", chunk * chunk_bytes, ", ",
        chunk * chunk_bytes + bytes.size(), ") is wrong: the file is damaged"));
  }
  source->verified = chunk;
  return absl::OkStatus();
}

}  // namespace shardgraph
