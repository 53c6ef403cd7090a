// ParseSafetensors, all that SafetensorsFile::Open does with the bytes it has
// mapped, and ReadAsFloat of every tensor: what is accepted tiles the data.
//
// The first byte says what the input is: even: a file; odd: the JSON of a
// header, and behind the byte 0 the data.

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/safetensors.h"
#include "kernels/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardgraph;  // NOLINT: a harness
  if (size == 0) return 0;
  absl::string_view file(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string made;
  if ((data[0] & 1) != 0) {
    const size_t header = std::min(file.find('\0'), file.size());
    const uint64_t bytes = header;
    made.reserve(sizeof(bytes) + file.size());
    made.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    made.append(file.data(), header);
    if (header < file.size())
      made.append(file.data() + header + 1, file.size() - header - 1);
    file = made;
  }
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  const auto start = ParseSafetensors(file, &entries, &metadata);
  if (!start.ok()) return 0;
  int64_t end = *start;
  std::vector<float> values;
  for (const SafetensorsEntry& entry : entries) {
    SG_CHECK_EQ(*start + entry.begin, end);
    SG_CHECK(entry.end >= entry.begin);
    end = *start + entry.end;
    if (!entry.dtype.has_value()) continue;
    SG_CHECK_EQ(NumElements(entry.shape) * SizeOf(*entry.dtype),
                entry.end - entry.begin);
    if (!IsFloating(*entry.dtype)) continue;
    values.resize(NumElements(entry.shape));
    ReadAsFloat(*entry.dtype,
                file.substr(*start + entry.begin, entry.end - entry.begin), 0,
                absl::MakeSpan(values));
  }
  SG_CHECK_EQ(end, static_cast<int64_t>(file.size()));
  return 0;
}
