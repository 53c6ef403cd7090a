#include "kernels/collective/tcp_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/collective/store_protocol.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

std::string Request(StoreRequest kind) {
  return std::string(1, static_cast<char>(kind));
}

std::string KeyRequest(StoreRequest kind, absl::string_view key) {
  std::string request = Request(kind);
  AppendText(&request, key);
  return request;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpStore>> TcpStore::Connect(
    const TcpStoreOptions& options) {
  auto store = std::unique_ptr<TcpStore>(new TcpStore(options));
  SG_ASSIGN_OR_RETURN(UniqueFd fd, store->Open(options.timeout));
  store->GiveBack(std::move(fd));
  return store;
}

absl::Status TcpStore::Explain(absl::string_view what,
                               const absl::Status& status) {
  absl::string_view remedy;
  if (status.code() == absl::StatusCode::kUnavailable) {
    remedy = "; the process that serves the store has ended";
  }
  return absl::Status(
      status.code(),
      absl::StrCat("store at ", options_.host, ":", options_.port, ", ",
                   options_.self.empty() ? "" : options_.self + ", ", what,
                   ": ", status.message(), remedy));
}

absl::StatusOr<UniqueFd> TcpStore::Take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      UniqueFd fd = std::move(idle_.back());
      idle_.pop_back();
      return fd;
    }
  }
  // The server was there before: waiting long for it is of no use.
  return Open(std::min(options_.timeout, absl::Seconds(5)));
}

absl::StatusOr<UniqueFd> TcpStore::Open(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::StatusOr<UniqueFd> fd =
      shardgraph::Connect(options_.host, options_.port, deadline);
  if (!fd.ok()) return Explain("connecting", fd.status());
  std::string greeting = Request(StoreRequest::kValidate);
  AppendNumber<uint32_t>(&greeting, kValidateMagic);
  if (!options_.token.empty()) {
    greeting += KeyRequest(StoreRequest::kHello, options_.token);
  }
  absl::Status status = SendAll(fd->get(), greeting, deadline);
  if (status.ok() && !options_.token.empty()) {
    uint8_t answer = 1;
    status = ReceiveAll(fd->get(), &answer, 1, deadline);
    if (status.ok() && answer != 0) {
      status = absl::PermissionDeniedError(
          "the job token was refused: this is the store of another job");
    }
  }
  if (!status.ok()) return Explain("greeting", status);
  return fd;
}

void TcpStore::GiveBack(UniqueFd fd) {
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(fd));
}

absl::Status TcpStore::Ask(absl::string_view what, const std::string& request,
                           void* answer, size_t bytes) {
  SG_ASSIGN_OR_RETURN(UniqueFd fd, Take());
  const absl::Time deadline = absl::Now() + options_.answer_timeout;
  absl::Status status = SendAll(fd.get(), request, deadline);
  if (status.ok()) status = ReceiveAll(fd.get(), answer, bytes, deadline);
  // After an error the connection is closed: it may be amid an answer.
  if (!status.ok()) return Explain(what, status);
  GiveBack(std::move(fd));
  return absl::OkStatus();
}

absl::Status TcpStore::Set(absl::string_view key, absl::string_view value) {
  // Set has no answer of its own: a check behind it tells that it was done.
  std::string request = KeyRequest(StoreRequest::kSet, key);
  AppendText(&request, value);
  request += Request(StoreRequest::kCheck);
  AppendList(&request, {std::string(key)});
  uint8_t answer = 0;
  return Ask(absl::StrCat("setting '", key, "'"), request, &answer, 1);
}

absl::Status TcpStore::WaitOn(int fd, absl::Span<const std::string> keys,
                              absl::Duration timeout) {
  // First a check: what is there already does not depend on the deadline.
  std::string request = Request(StoreRequest::kCheck);
  AppendList(&request, keys);
  const absl::Time answer_deadline = absl::Now() + options_.answer_timeout;
  uint8_t missing = 0;
  absl::Status status = SendAll(fd, request, answer_deadline);
  if (status.ok()) status = ReceiveAll(fd, &missing, 1, answer_deadline);
  if (status.ok() && missing != 0) {
    const absl::Time deadline = absl::Now() + timeout;
    request[0] = static_cast<char>(StoreRequest::kWait);
    status = SendAll(fd, request, answer_deadline);
    if (status.ok()) status = ReceiveAll(fd, &missing, 1, deadline);
  }
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    status = absl::DeadlineExceededError(
        absl::StrCat("not set within ", absl::FormatDuration(timeout)));
  }
  return status.ok() ? status
                     : Explain(absl::StrCat("waiting for '",
                                            absl::StrJoin(keys, "', '"), "'"),
                               status);
}

absl::StatusOr<std::string> TcpStore::Get(absl::string_view key,
                                          absl::Duration timeout) {
  SG_ASSIGN_OR_RETURN(UniqueFd fd, Take());
  const std::string name(key);
  SG_RETURN_IF_ERROR(WaitOn(fd.get(), absl::MakeConstSpan(&name, 1), timeout));
  const absl::Time deadline = absl::Now() + options_.answer_timeout;
  absl::Status status =
      SendAll(fd.get(), KeyRequest(StoreRequest::kGet, key), deadline);
  uint64_t size = 0;
  if (status.ok()) {
    status = ReceiveAll(fd.get(), &size, sizeof(size), deadline);
  }
  if (status.ok() && size > kMaxStoreString) {
    status = absl::InternalError(absl::StrCat("a value of ", size, " bytes"));
  }
  std::string value(status.ok() ? size : 0, 0);
  if (status.ok()) {
    status = ReceiveAll(fd.get(), value.data(), size, deadline);
  }
  if (!status.ok()) return Explain(absl::StrCat("getting '", key, "'"), status);
  GiveBack(std::move(fd));
  return value;
}

absl::StatusOr<int64_t> TcpStore::Add(absl::string_view key, int64_t delta) {
  std::string request = KeyRequest(StoreRequest::kAdd, key);
  AppendNumber<int64_t>(&request, delta);
  int64_t sum = 0;
  SG_RETURN_IF_ERROR(
      Ask(absl::StrCat("adding to '", key, "'"), request, &sum, sizeof(sum)));
  return sum;
}

absl::Status TcpStore::Wait(absl::Span<const std::string> keys,
                            absl::Duration timeout) {
  SG_ASSIGN_OR_RETURN(UniqueFd fd, Take());
  SG_RETURN_IF_ERROR(WaitOn(fd.get(), keys, timeout));
  GiveBack(std::move(fd));
  return absl::OkStatus();
}

absl::StatusOr<bool> TcpStore::Check(absl::Span<const std::string> keys) {
  std::string request = Request(StoreRequest::kCheck);
  AppendList(&request, keys);
  uint8_t missing = 0;
  SG_RETURN_IF_ERROR(Ask("checking keys", request, &missing, 1));
  return missing == 0;
}

absl::StatusOr<bool> TcpStore::Delete(absl::string_view key) {
  int64_t deleted = 0;
  SG_RETURN_IF_ERROR(Ask(absl::StrCat("deleting '", key, "'"),
                         KeyRequest(StoreRequest::kDelete, key), &deleted,
                         sizeof(deleted)));
  return deleted != 0;
}

absl::StatusOr<std::string> TcpStore::LocalAddress() {
  SG_ASSIGN_OR_RETURN(UniqueFd fd, Take());
  SG_ASSIGN_OR_RETURN(std::string address, shardgraph::LocalAddress(fd.get()));
  GiveBack(std::move(fd));
  return address;
}

}  // namespace shardgraph
