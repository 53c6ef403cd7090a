// convert: weights from one format to another. Exit status: 0 done, 2 a wrong
// flag or input, 1 anything else.

#include <cstdio>

#include "tools/convert/convert.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"

int main(int argc, char** argv) {
  using shardgraph::Finish;
  const absl::StatusOr<shardgraph::ConvertOptions> options =
      shardgraph::ParseConvertFlags(shardgraph::ArgumentsOf(argc, argv));
  if (!options.ok()) return Finish("convert", options.status());
  const absl::StatusOr<shardgraph::ConvertResult> result =
      shardgraph::Convert(*options);
  if (!result.ok()) return Finish("convert", result.status());
  std::printf("%s: %lld parameters, %lld bytes\n", result->written.c_str(),
              static_cast<long long>(result->parameters),
              static_cast<long long>(result->bytes));
  return 0;
}
