// CheckpointReader: reads ranges of a checkpoint's tensors by name, through the
// checksums of their pieces.
#ifndef FSDP_CHECKPOINT_CHECKPOINT_READER_H_
#define FSDP_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "fsdp/checkpoint/safetensors.h"
#include "kernels/tensor.h"
#include "proto/checkpoint.pb.h"

namespace shardgraph {

// Files are mapped when they are first needed and stay so; of their pages,
// those of one chunk of a piece at a time are in memory. Not safe to use from
// several threads.
class CheckpointReader {
 public:
  // `manifest` is what ReadCheckpointManifest(folder) gave; it outlives the
  // reader.
  CheckpointReader(std::string folder, const CheckpointManifest& manifest);

  // Null when there is none.
  const CheckpointTensor* Find(const std::string& name) const;

  // Hands out elements [begin, begin + elements) of a tensor of the manifest,
  // in runs that are contiguous in it, of 256 KiB at most, as they are stored:
  // `take(first element of the run, counted from begin; dtype; bytes)`, in the
  // order of the tensor's pieces, until one fails. DataLoss names file and
  // tensor: damage, or elements that no piece has.
  absl::Status Read(const CheckpointTensor& tensor, int64_t begin,
                    int64_t elements,
                    absl::FunctionRef<absl::Status(int64_t first, DType dtype,
                                                   absl::string_view bytes)>
                        take);

 private:
  struct Source {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
    absl::string_view data;
    int64_t verified = -1;  // chunk
  };

  absl::Status Open(const CheckpointTensor& tensor,
                    const CheckpointPiece& piece, Source* source);
  absl::Status Verify(const CheckpointPiece& piece, int64_t chunk,
                      Source* source) const;

  const std::string folder_;
  const CheckpointManifest& manifest_;
  std::map<std::string, const CheckpointTensor*> tensors_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_CHECKPOINT_READER_H_
