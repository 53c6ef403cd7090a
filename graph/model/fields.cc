#include "graph/model/fields.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// The divisors of `value` nearest to `wanted`, at most three on either side.
std::vector<int64_t> NearDivisors(int64_t value, int64_t wanted) {
  std::vector<int64_t> below, above;
  for (int64_t d = wanted - 1; d >= 1 && below.size() < 3; --d) {
    if (value % d == 0) below.insert(below.begin(), d);
  }
  const int64_t last = std::min<int64_t>(value, wanted + 1000000);
  for (int64_t d = wanted + 1; d <= last && above.size() < 3; ++d) {
    if (value % d == 0) above.push_back(d);
  }
  below.insert(below.end(), above.begin(), above.end());
  return below;
}

}  // namespace

absl::Status BadField(absl::string_view path, const absl::AlphaNum& value,
                      absl::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is ", value, ": ", rule));
}

absl::Status CheckSize(absl::string_view path, int64_t value) {
  if (value >= 1 && value <= kMaxSize) return absl::OkStatus();
  return BadField(path, value,
                  value == 0
                      ? absl::StrCat("set it, between 1 and ", kMaxSize)
                      : absl::StrCat("must be between 1 and ", kMaxSize));
}

absl::Status CheckCopies(absl::string_view path, int64_t value) {
  if (value >= 1 && value <= kMaxCopies) return absl::OkStatus();
  return BadField(path, value,
                  absl::StrCat("must be between 1 and ", kMaxCopies));
}

absl::Status CheckRate(absl::string_view path, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return BadField(path, value,
                  "a dropout rate must be at least 0 and below 1; 0 switches "
                  "it off");
}

absl::Status CheckPositive(absl::string_view path, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return BadField(path, value, "must be above 0 and finite");
}

absl::Status CheckActivation(absl::string_view path, absl::string_view value) {
  for (const absl::string_view known : {"gelu_new", "gelu", "relu", "silu"}) {
    if (value == known) return absl::OkStatus();
  }
  return BadField(path, absl::StrCat("\"", value, "\""),
                  "must be one of \"gelu_new\", \"gelu\", \"relu\", \"silu\"");
}

absl::Status CheckInit(absl::string_view path, const InitSpec& init) {
  if (init.std() >= 0 && std::isfinite(init.std())) return absl::OkStatus();
  return BadField(absl::StrCat(path, ".std"), init.std(),
                  "must be at least 0 and finite; usual is 0.02");
}

absl::Status CheckDivides(absl::string_view path, int64_t divisor,
                          absl::string_view what, int64_t value) {
  if (value % divisor == 0) return absl::OkStatus();
  return BadField(
      path, divisor,
      absl::StrCat("must divide ", what, ", which is ", value, "; near by are ",
                   absl::StrJoin(NearDivisors(value, divisor), ", ")));
}

absl::Status CheckRopeScaling(absl::string_view path,
                              const RopeScaling& scaling) {
  SG_RETURN_IF_ERROR(
      CheckPositive(absl::StrCat(path, ".factor"), scaling.factor()));
  SG_RETURN_IF_ERROR(CheckPositive(absl::StrCat(path, ".low_freq_factor"),
                                   scaling.low_freq_factor()));
  SG_RETURN_IF_ERROR(CheckPositive(absl::StrCat(path, ".high_freq_factor"),
                                   scaling.high_freq_factor()));
  SG_RETURN_IF_ERROR(
      CheckSize(absl::StrCat(path, ".original_max_position_embeddings"),
                scaling.original_max_position_embeddings()));
  if (scaling.high_freq_factor() > scaling.low_freq_factor()) {
    return absl::OkStatus();
  }
  return BadField(
      absl::StrCat(path, ".high_freq_factor"), scaling.high_freq_factor(),
      absl::StrCat("must be above low_freq_factor, which is ",
                   scaling.low_freq_factor(), "; Llama 3.1 has 4 and 1"));
}

}  // namespace shardgraph
