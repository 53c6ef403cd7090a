// Store: the small key-value store where the ranks of a job find each other.
//
// Keys and values are byte strings. Get and Wait block until a key is set;
// a deadline that passes is DeadlineExceeded and names the keys that are
// missing, who waited and where. Thread safe.
#ifndef KERNELS_COLLECTIVE_STORE_H_
#define KERNELS_COLLECTIVE_STORE_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace shardgraph {

class Store {
 public:
  virtual ~Store() = default;

  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // The value, as soon as there is one.
  virtual absl::StatusOr<std::string> Get(absl::string_view key,
                                          absl::Duration timeout) = 0;
  // Adds to a counter (a decimal string, 0 when missing); the new value.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) = 0;
  // Until all keys are set.
  virtual absl::Status Wait(absl::Span<const std::string> keys,
                            absl::Duration timeout) = 0;
  // Whether all keys are set now.
  virtual absl::StatusOr<bool> Check(absl::Span<const std::string> keys) = 0;
  // Whether there was such a key.
  virtual absl::StatusOr<bool> Delete(absl::string_view key) = 0;
};

// A store whose keys begin with `prefix` and a slash in another store, which
// outlives it.
class PrefixStore final : public Store {
 public:
  PrefixStore(Store& store, absl::string_view prefix);

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::Status Wait(absl::Span<const std::string> keys,
                    absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;

 private:
  std::string Full(absl::string_view key) const;
  std::vector<std::string> Full(absl::Span<const std::string> keys) const;

  Store& store_;
  const std::string prefix_;
};

// For ranks that are threads of one process.
class InProcessStore final : public Store {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::Status Wait(absl::Span<const std::string> keys,
                    absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;

 private:
  bool HasAll(absl::Span<const std::string> keys) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

// The new value of a counter; FailedPrecondition when `value` is not a decimal
// number.
absl::StatusOr<int64_t> AddToDecimal(absl::string_view key,
                                     absl::string_view value, int64_t delta);

// Waits until each of `ranks`, which contain `rank`, has called it with the
// same key, and returns what they brought, in the order of `ranks`. A key is
// used once. Errors name the ranks that are missing.
absl::StatusOr<std::vector<std::string>> ExchangeThroughStore(
    Store& store, absl::string_view key, int rank, absl::Span<const int> ranks,
    absl::string_view value, absl::Duration timeout);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_STORE_H_
