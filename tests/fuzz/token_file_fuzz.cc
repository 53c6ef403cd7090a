// Token files in memory: TokenFile's header of llm.c and nanoGPT, Megatron's
// index with the file beside it (ParseMegatronIndex), and TokenFile::Read up to
// the end. Mapping a file is not driven here.
//
// The first byte says what the input is: 0 mod 4: the file as it is; 1: the
// first three numbers of a header of 1,024 bytes and, behind them, what follows
// it; 2: an index, of a .bin of as many bytes as the second byte says; 3: an
// index without its magic and version.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "fsdp/data/token_file.h"
#include "kernels/check.h"

namespace shardgraph {
namespace {

constexpr size_t kHeaderInts = 12, kHeaderBytes = 1024;  // bytes
constexpr absl::string_view kIndexStart("MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17);

// What opens can be read to its end, and not beyond.
void CheckFile(absl::string_view file, std::optional<absl::string_view> index) {
  const auto opened = TokenFile::OverMemory(file, index);
  if (!opened.ok()) return;
  const TokenFile& tokens = **opened;
  int32_t out[7];
  const int64_t size = tokens.size(), n = std::min<int64_t>(7, size);
  SG_CHECK(size <= static_cast<int64_t>(file.size()));
  for (const int64_t begin : {int64_t{0}, size - n}) {
    if (!tokens.Read(begin, 1 << 16, absl::MakeSpan(out, n)).ok()) continue;
    for (int64_t i = 0; i < n; ++i) SG_CHECK(out[i] >= 0 && out[i] < 1 << 16);
  }
  SG_CHECK(!tokens.Read(size, 10, absl::MakeSpan(out)).ok());
  SG_CHECK(!tokens.Read(-1, 10, absl::MakeSpan(out, 1)).ok());
  const std::vector<int64_t>& starts = tokens.document_starts();
  SG_CHECK_EQ(starts.empty(), !index.has_value());
  if (!starts.empty()) SG_CHECK_EQ(starts[0], 0);
  for (size_t i = 1; i < starts.size(); ++i)
    SG_CHECK(starts[i - 1] < starts[i] && starts[i] < size);
}

}  // namespace
}  // namespace shardgraph

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardgraph;  // NOLINT: a harness
  absl::string_view input(reinterpret_cast<const char*>(data), size);
  if (size < 2) return 0;
  // Exactly as large as what it holds, so that every byte beyond is noticed.
  std::string file;
  const int form = data[0] & 3;
  input.remove_prefix(1);
  switch (form) {
    case 0:
      CheckFile(input, std::nullopt);
      break;
    case 1:
      file.reserve(kHeaderBytes + input.size());
      file.append(input.substr(0, kHeaderInts).data(),
                  std::min(kHeaderInts, input.size()));
      file.resize(kHeaderBytes);
      if (input.size() > kHeaderInts) {
        input.remove_prefix(kHeaderInts);
        file.append(input.data(), input.size());
      }
      CheckFile(file, std::nullopt);
      break;
    default: {
      file.assign(data[1], '\1');
      input.remove_prefix(1);
      std::string index(form == 3 ? kIndexStart : absl::string_view());
      index.append(input.data(), input.size());
      CheckFile(file, index);
    }
  }
  return 0;
}
