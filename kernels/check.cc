#include "kernels/check.h"

#include <cstdio>
#include <cstdlib>

namespace shardgraph::internal {

FatalMessage::FatalMessage(const char* file, int line,
                           const std::string& what) {
  stream_ << file << ":" << line << ": check failed: " << what << " ";
}

FatalMessage::~FatalMessage() {
  stream_ << "\n";
  const std::string text = stream_.str();
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace shardgraph::internal
