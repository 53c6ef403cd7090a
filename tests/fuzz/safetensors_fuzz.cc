// The header of a safetensors file: whatever is accepted tiles the data.

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/safetensors.h"
#include "kernels/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardgraph;  // NOLINT: a harness
  const absl::string_view file(reinterpret_cast<const char*>(data), size);
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  const auto start = ParseSafetensors(file, &entries, &metadata);
  if (!start.ok()) return 0;
  int64_t end = *start;
  for (const SafetensorsEntry& entry : entries) {
    SG_CHECK_EQ(*start + entry.begin, end);
    SG_CHECK(entry.end >= entry.begin);
    end = *start + entry.end;
    if (!entry.dtype.has_value()) continue;
    SG_CHECK_EQ(NumElements(entry.shape) * SizeOf(*entry.dtype),
                entry.end - entry.begin);
    if (!IsFloating(*entry.dtype)) continue;
    std::vector<float> values(NumElements(entry.shape));
    ReadAsFloat(*entry.dtype,
                file.substr(*start + entry.begin, entry.end - entry.begin), 0,
                absl::MakeSpan(values));
  }
  SG_CHECK_EQ(end, static_cast<int64_t>(size));
  return 0;
}
