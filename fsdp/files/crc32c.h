// CRC-32C (Castagnoli), the checksum of checkpoints and of TensorBoard files.
#ifndef FSDP_FILES_CRC32C_H_
#define FSDP_FILES_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace shardgraph {

// The CRC of what `crc` covers followed by `data`; 0 covers nothing, so
// ExtendCrc32c(ExtendCrc32c(0, a), b) is the CRC of a and b back to back.
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data);

inline uint32_t Crc32c(absl::string_view data) { return ExtendCrc32c(0, data); }

// The same, and copies `data` to `to`, which does not overlap it, past the
// caches: takes as long as the copy alone where memory is the limit.
uint32_t CopyAndExtendCrc32c(uint32_t crc, absl::string_view data, char* to);

}  // namespace shardgraph

#endif  // FSDP_FILES_CRC32C_H_
