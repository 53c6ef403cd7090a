#include "fsdp/checkpoint/shard_files.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "fsdp/checkpoint/boxes.h"
#include "fsdp/checkpoint/checkpoint_names.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/files/crc32c.h"
#include "fsdp/files/json.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

// What a checksum covers.
constexpr int64_t kChunkElements = (4 << 20) / 4;
// What is read and summed at a time: it stays in a core's cache.
constexpr int64_t kBlockElements = (256 << 10) / 4;
static_assert(kChunkElements % kBlockElements == 0);

// One of the files before its header is made.
struct Contents {
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::map<std::string, ShardFiles::Piece> pieces;  // by the tensor's name
  nlohmann::json offsets = nlohmann::json::object();
};

}  // namespace

ShardFiles::ShardFiles(const TrainingPlan& plan, int shard)
    : plan_(plan), shard_(shard) {
  part_.set_version(kManifestVersion);
  part_.set_chunk_bytes(kChunkElements * SizeOf(DType::kF32));
  std::vector<Contents> contents;
  for (const HeldRange& held : HeldRanges(plan, shard)) {
    const std::vector<Box> boxes =
        BoxesOfRange(held.parameter->shape, held.begin, held.elements);
    if (boxes.size() > contents.size()) contents.resize(boxes.size());
    for (ShardKind kind : KindsOf(plan.units[held.unit])) {
      const std::string name = CheckpointTensorName(kind, held.parameter->name);
      Piece piece = {
          .range = held, .kind = kind, .tensor = part_.tensors_size()};
      CheckpointTensor* tensor = part_.add_tensors();
      tensor->set_name(name);
      tensor->set_dtype(std::string(DTypeName(DType::kF32)));
      for (int64_t dim : held.parameter->shape) tensor->add_shape(dim);
      for (size_t i = 0; i < boxes.size(); ++i) {
        const Box& box = boxes[i];
        piece.elements = box.numel();
        piece.number = tensor->pieces_size();
        CheckpointPiece* described = tensor->add_pieces();
        described->set_file(static_cast<int>(i));
        for (int64_t offset : box.offset) described->add_offset(offset);
        for (int64_t size : box.size) described->add_size(size);
        contents[i].tensors.push_back({name, DType::kF32, box.size});
        contents[i].offsets[name]["saved_offsets"] =
            std::vector<int64_t>(box.offset.begin(), box.offset.end());
        contents[i].pieces.emplace(name, piece);
        piece.begin += piece.elements;
      }
    }
  }
  for (size_t i = 0; i < contents.size(); ++i) {
    File& file = files_.emplace_back();
    file.name = absl::StrFormat("shard-%05d-model-%05d-of-%05d.safetensors",
                                shard, i + 1, contents.size());
    auto header = MakeSafetensorsHeader(
        contents[i].tensors,
        {{"DCP_SHARDING_INFO", JsonText(contents[i].offsets)},
         {"DCP_VERSION", "1.0"},
         {"format", "pt"}},
        DurableFile::kPage);
    SG_CHECK(header.ok()) << header.status();
    file.header = *std::move(header);
    for (const SafetensorsEntry& entry : file.header.entries) {
      file.pieces.push_back(contents[i].pieces.at(entry.name));
      file.data_bytes = entry.end;
    }
    data_bytes_ += file.data_bytes;
    CheckpointFile* described = part_.add_files();
    described->set_name(file.name);
    described->set_bytes(static_cast<int64_t>(file.header.text.size()) +
                         file.data_bytes);
    described->set_header_bytes(static_cast<int64_t>(file.header.text.size()));
    described->set_header_crc32c(Crc32c(file.header.text));
  }
}

absl::StatusOr<ShardFiles::Sums> ShardFiles::Read(
    const Piece& piece, BufferReader& source, char* to,
    absl::FunctionRef<absl::Status(absl::string_view block)> take) const {
  ShardReader shards(plan_, shard_, source);
  std::vector<float> values;  // of a block that is neither kept nor in sight
  Sums sums;
  const int64_t step = to != nullptr ? kChunkElements : kBlockElements;
  for (int64_t begin = 0; begin < piece.elements; begin += step) {
    const int64_t elements = std::min(step, piece.elements - begin),
                  first = piece.begin + begin;
    if (begin % kChunkElements == 0) sums.push_back(0);
    const float* from = shards.View(piece.range, first, elements, piece.kind);
    const bool in_sight = from != nullptr;
    if (!in_sight) {
      if (to == nullptr) values.resize(elements);
      float* const into =
          to != nullptr ? reinterpret_cast<float*>(to) : values.data();
      SG_RETURN_IF_ERROR(shards.Read(
          piece.range, first, absl::MakeSpan(into, elements), piece.kind));
      from = into;
    }
    const absl::string_view block(reinterpret_cast<const char*>(from),
                                  elements * sizeof(float));
    sums.back() = in_sight && to != nullptr
                      ? CopyAndExtendCrc32c(sums.back(), block, to)
                      : ExtendCrc32c(sums.back(), block);
    if (to != nullptr) to += block.size();
    SG_RETURN_IF_ERROR(take(block));
  }
  return sums;
}

}  // namespace shardgraph
