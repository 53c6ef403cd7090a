// ParseManifest on the text of a checkpoint's manifest, as it is and with a
// checksum that is right: without, nothing but the checksum would be tried.
// Then CheckPieces, and ForEachRun over the pieces of what is accepted. The
// folder that the manifest is in is not driven here.

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "fsdp/checkpoint/boxes.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/files/crc32c.h"
#include "kernels/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardgraph;  // NOLINT: a harness
  std::string text(reinterpret_cast<const char*>(data), size);
  ParseManifest("m", text).status().IgnoreError();
  text += absl::StrFormat("# crc32c %08x\n", Crc32c(text));
  const auto manifest = ParseManifest("m", text);
  if (!manifest.ok() || !CheckPieces(*manifest).ok()) return 0;
  for (const CheckpointTensor& tensor : manifest->tensors()) {
    const Dims shape(tensor.shape().begin(), tensor.shape().end());
    const int64_t whole = NumElements(shape);
    for (const CheckpointPiece& piece : tensor.pieces()) {
      const Box box = BoxOf(piece);
      int64_t elements = 0, runs = 0;
      const absl::Status status = ForEachRun(
          shape, box, [&](int64_t in_tensor, int64_t in_box, int64_t count) {
            SG_CHECK_EQ(in_box, elements);
            SG_CHECK(count > 0 && in_tensor >= 0 && in_tensor <= whole - count);
            elements += count;
            // A box of many short runs is fine, and slow.
            return ++runs < 100 ? absl::OkStatus()
                                : absl::CancelledError("enough");
          });
      if (status.ok()) SG_CHECK_EQ(elements, box.numel());
    }
  }
  return 0;
}
