// TcpStore: a client of the rendezvous store of a job, ours (store_server.h) or
// the one that torchrun's agent serves.
//
// Thread safe; a thread that waits does not hold up another one. Errors name
// the server, who asked and the key: DeadlineExceeded when a key does not come,
// PermissionDenied when the token is refused, Unavailable when the server is
// lost.
#ifndef KERNELS_COLLECTIVE_TCP_STORE_H_
#define KERNELS_COLLECTIVE_TCP_STORE_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/collective/socket.h"
#include "kernels/collective/store.h"

namespace shardgraph {

struct TcpStoreOptions {
  std::string host;
  int port = 0;
  std::string token;  // empty: a server that asks for none (torchrun's agent)
  std::string self;   // who asks, for messages: "rank 1 on node7"
  // For connecting: the server may start later.
  absl::Duration timeout = absl::Seconds(300);
  // For each answer that does not wait for a key.
  absl::Duration answer_timeout = absl::Seconds(30);
};

class TcpStore final : public Store {
 public:
  static absl::StatusOr<std::unique_ptr<TcpStore>> Connect(
      const TcpStoreOptions& options);

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::Status Wait(absl::Span<const std::string> keys,
                    absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;

  // The address of this host on the way to the server: others can reach it
  // there.
  absl::StatusOr<std::string> LocalAddress();

 private:
  explicit TcpStore(const TcpStoreOptions& options) : options_(options) {}

  // A connection nobody uses, or a new one.
  absl::StatusOr<UniqueFd> Take();
  absl::StatusOr<UniqueFd> Open(absl::Duration timeout);
  void GiveBack(UniqueFd fd);
  // Sends `request` on a connection of its own and reads an answer of `bytes`
  // into `answer`.
  absl::Status Ask(absl::string_view what, const std::string& request,
                   void* answer, size_t bytes);
  absl::Status WaitOn(int fd, absl::Span<const std::string> keys,
                      absl::Duration timeout);
  absl::Status Explain(absl::string_view what, const absl::Status& status);

  const TcpStoreOptions options_;
  std::mutex mutex_;
  std::vector<UniqueFd> idle_;  // guarded by mutex_
};

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_TCP_STORE_H_
