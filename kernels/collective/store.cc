#include "kernels/collective/store.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"

namespace shardgraph {

PrefixStore::PrefixStore(Store& store, absl::string_view prefix)
    : store_(store), prefix_(absl::StrCat(prefix, "/")) {}

std::string PrefixStore::Full(absl::string_view key) const {
  return absl::StrCat(prefix_, key);
}

std::vector<std::string> PrefixStore::Full(
    absl::Span<const std::string> keys) const {
  std::vector<std::string> full;
  for (const std::string& key : keys) full.push_back(Full(key));
  return full;
}

absl::Status PrefixStore::Set(absl::string_view key, absl::string_view value) {
  return store_.Set(Full(key), value);
}

absl::StatusOr<std::string> PrefixStore::Get(absl::string_view key,
                                             absl::Duration timeout) {
  return store_.Get(Full(key), timeout);
}

absl::StatusOr<int64_t> PrefixStore::Add(absl::string_view key, int64_t delta) {
  return store_.Add(Full(key), delta);
}

absl::Status PrefixStore::Wait(absl::Span<const std::string> keys,
                               absl::Duration timeout) {
  return store_.Wait(Full(keys), timeout);
}

absl::StatusOr<bool> PrefixStore::Check(absl::Span<const std::string> keys) {
  return store_.Check(Full(keys));
}

absl::StatusOr<bool> PrefixStore::Delete(absl::string_view key) {
  return store_.Delete(Full(key));
}

absl::Status InProcessStore::Set(absl::string_view key,
                                 absl::string_view value) {
  std::lock_guard<std::mutex> lock(mutex_);
  values_[std::string(key)] = std::string(value);
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::string> InProcessStore::Get(absl::string_view key,
                                                absl::Duration timeout) {
  const std::string name(key);
  SG_RETURN_IF_ERROR(Wait(absl::MakeConstSpan(&name, 1), timeout));
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = values_.find(name);
  if (it == values_.end()) {
    return absl::NotFoundError(
        absl::StrCat("store: key '", name, "' was deleted meanwhile"));
  }
  return it->second;
}

absl::StatusOr<int64_t> InProcessStore::Add(absl::string_view key,
                                            int64_t delta) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string& value = values_[std::string(key)];
  SG_ASSIGN_OR_RETURN(const int64_t sum,
                      AddToDecimal(key, value.empty() ? "0" : value, delta));
  value = absl::StrCat(sum);
  changed_.notify_all();
  return sum;
}

absl::Status InProcessStore::Wait(absl::Span<const std::string> keys,
                                  absl::Duration timeout) {
  // A year is forever, and does not overflow.
  const auto limit =
      absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
  std::unique_lock<std::mutex> lock(mutex_);
  if (changed_.wait_until(lock, std::chrono::steady_clock::now() + limit,
                          [&] { return HasAll(keys); })) {
    return absl::OkStatus();
  }
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (values_.count(key) == 0) missing.push_back(key);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("store: nobody set '", absl::StrJoin(missing, "', '"),
                   "' within ", absl::FormatDuration(timeout)));
}

absl::StatusOr<bool> InProcessStore::Check(absl::Span<const std::string> keys) {
  std::lock_guard<std::mutex> lock(mutex_);
  return HasAll(keys);
}

absl::StatusOr<bool> InProcessStore::Delete(absl::string_view key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return values_.erase(std::string(key)) == 1;
}

bool InProcessStore::HasAll(absl::Span<const std::string> keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) {
    return values_.count(key) == 1;
  });
}

absl::StatusOr<int64_t> AddToDecimal(absl::string_view key,
                                     absl::string_view value, int64_t delta) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(value, &number)) {
    return absl::FailedPreconditionError(
        absl::StrCat("store: key '", key, "' holds no decimal number to add ",
                     delta, " to"));
  }
  return static_cast<int64_t>(static_cast<uint64_t>(number) +
                              static_cast<uint64_t>(delta));
}

absl::StatusOr<std::vector<std::string>> ExchangeThroughStore(
    Store& store, absl::string_view key, int rank, absl::Span<const int> ranks,
    absl::string_view value, absl::Duration timeout) {
  const auto key_of = [key](int r) { return absl::StrCat(key, "/rank_", r); };
  SG_RETURN_IF_ERROR(store.Set(key_of(rank), value));
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<std::string> values;
  for (const int r : ranks) {
    absl::StatusOr<std::string> got = store.Get(
        key_of(r), std::max(deadline - absl::Now(), absl::ZeroDuration()));
    if (got.ok()) {
      values.push_back(*std::move(got));
      continue;
    }
    if (got.status().code() != absl::StatusCode::kDeadlineExceeded) {
      return got.status();
    }
    // Who else is missing: one message names all.
    std::vector<int> missing;
    for (const int other : ranks) {
      const std::string name = key_of(other);
      SG_ASSIGN_OR_RETURN(const bool there,
                          store.Check(absl::MakeConstSpan(&name, 1)));
      if (!there) missing.push_back(other);
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "rendezvous '", key, "' on rank ", rank, ": rank ",
        absl::StrJoin(missing, ", "), " did not come within ",
        absl::FormatDuration(timeout), " (", got.status().message(), ")"));
  }
  return values;
}

}  // namespace shardgraph
