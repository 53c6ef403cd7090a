// Checks of single fields of a model spec. Every error is InvalidArgument and
// reads "<path> is <value>: <what is allowed or what to do>".
#ifndef GRAPH_MODEL_FIELDS_H_
#define GRAPH_MODEL_FIELDS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/model.pb.h"

namespace shardgraph {

// Token ids and positions are I32 tensors; products of two sizes fit int64.
inline constexpr int64_t kMaxSize = 2147483647;
// Of a Repeat or of a family's layers: keeps a typing error from taking the
// memory of the machine.
inline constexpr int64_t kMaxCopies = 10000;

absl::Status BadField(absl::string_view path, const absl::AlphaNum& value,
                      absl::string_view rule);

// In [1, kMaxSize].
absl::Status CheckSize(absl::string_view path, int64_t value);
// In [1, kMaxCopies].
absl::Status CheckCopies(absl::string_view path, int64_t value);
// A dropout rate: in [0, 1).
absl::Status CheckRate(absl::string_view path, double value);
// Finite and above zero.
absl::Status CheckPositive(absl::string_view path, double value);
// One of the activations that `activation` ops know.
absl::Status CheckActivation(absl::string_view path, absl::string_view value);
// The standard deviation: finite, not negative.
absl::Status CheckInit(absl::string_view path, const InitSpec& init);
// `count` heads of width / count each: `divisor` must divide `value`.
absl::Status CheckDivides(absl::string_view path, int64_t divisor,
                          absl::string_view what, int64_t value);
absl::Status CheckRopeScaling(absl::string_view path,
                              const RopeScaling& scaling);

}  // namespace shardgraph

#endif  // GRAPH_MODEL_FIELDS_H_
