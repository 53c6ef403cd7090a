// Token files: the input as a file of llm.c or nanoGPT, and as a Megatron
// index. What opens can be read to its end.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/data/megatron_index.h"
#include "fsdp/data/token_file.h"
#include "kernels/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardgraph;  // NOLINT: a harness
  static const int memory = memfd_create("tokens", 0);
  SG_CHECK(memory >= 0 && ftruncate(memory, 0) == 0);
  SG_CHECK(pwrite(memory, data, size, 0) == static_cast<ssize_t>(size));
  const auto file = TokenFile::Open(absl::StrCat("/proc/self/fd/", memory));
  if (file.ok()) {
    std::vector<int32_t> tokens(7);
    const int64_t n = std::min<int64_t>(7, (*file)->size());
    for (const int64_t begin : {int64_t{0}, (*file)->size() - n}) {
      (*file)
          ->Read(begin, 1 << 16, absl::MakeSpan(tokens.data(), n))
          .IgnoreError();
    }
    SG_CHECK(!(*file)->Read((*file)->size(), 10, absl::MakeSpan(tokens)).ok());
  }
  // The size of the .bin comes first.
  if (size == 0) return 0;
  const auto index = ParseMegatronIndex(
      absl::string_view(reinterpret_cast<const char*>(data) + 1, size - 1),
      data[0]);
  if (!index.ok()) return 0;
  SG_CHECK(index->tokens * index->token_bytes == data[0]);
  SG_CHECK(!index->document_starts.empty() && index->document_starts[0] == 0);
  for (size_t i = 1; i < index->document_starts.size(); ++i) {
    SG_CHECK(index->document_starts[i - 1] < index->document_starts[i] &&
             index->document_starts[i] < index->tokens);
  }
  return 0;
}
