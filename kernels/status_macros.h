// Macros that pass absl::Status errors on to the caller.
//
//   SG_RETURN_IF_ERROR(store.Set(key, value));
//   SG_ASSIGN_OR_RETURN(const Plan plan, MakePlan(spec));
//   SG_CHECK_OK(plan.Verify()) << "step " << step;

#ifndef KERNELS_STATUS_MACROS_H_
#define KERNELS_STATUS_MACROS_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/check.h"

namespace shardgraph::internal {

inline const absl::Status& AsStatus(const absl::Status& status) {
  return status;
}

template <typename T>
const absl::Status& AsStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

// Null when `status` is OK, else the text of the failure.
std::unique_ptr<std::string> CheckIsOk(const absl::Status& status,
                                       const char* what);

}  // namespace shardgraph::internal

// Returns the status of `expression` from the enclosing function unless it is
// OK. That function returns absl::Status or absl::StatusOr.
#define SG_RETURN_IF_ERROR(...)              \
  do {                                       \
    absl::Status sg_status_ = (__VA_ARGS__); \
    if (!sg_status_.ok()) [[unlikely]] {     \
      return sg_status_;                     \
    }                                        \
  } while (false)

// Moves the value of an absl::StatusOr into `lhs`, which may be a declaration,
// or returns its status. Several statements: not for an `if` without braces.
#define SG_ASSIGN_OR_RETURN(lhs, ...) \
  SG_ASSIGN_OR_RETURN_(SG_CONCAT_(sg_result_, __LINE__), lhs, __VA_ARGS__)

#define SG_ASSIGN_OR_RETURN_(result, lhs, ...) \
  auto result = (__VA_ARGS__);                 \
  if (!result.ok()) [[unlikely]] {             \
    return std::move(result).status();         \
  }                                            \
  lhs = *std::move(result)

#define SG_CONCAT_(a, b) SG_CONCAT_IMPL_(a, b)
#define SG_CONCAT_IMPL_(a, b) a##b

// Aborts unless the absl::Status or absl::StatusOr is OK.
#define SG_CHECK_OK(expression)                                          \
  while (auto sg_failure_ = ::shardgraph::internal::CheckIsOk(           \
             ::shardgraph::internal::AsStatus(expression), #expression)) \
  ::shardgraph::internal::FatalMessage(__FILE__, __LINE__, *sg_failure_) \
      .stream()

#endif  // KERNELS_STATUS_MACROS_H_
