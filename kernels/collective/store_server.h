// StoreServer: serves the rendezvous store of a job over TCP, on a thread of
// its own.
//
// Peers that do not present the job token are dropped before they can read or
// change anything, and cannot hold up the others. Which process serves is the
// launcher's business: itself, or rank 0.
#ifndef KERNELS_COLLECTIVE_STORE_SERVER_H_
#define KERNELS_COLLECTIVE_STORE_SERVER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/collective/socket.h"
#include "kernels/collective/store.h"

namespace shardgraph {

struct StoreServerOptions {
  // The name or address under which clients reach this host; only the interface
  // that it stands for is listened on, where that is beyond doubt. Empty: all
  // interfaces.
  std::string host;
  int port = 0;  // 0: any free one
  // What clients must present. Empty: nothing, as torch's own clients do.
  std::string token;
  // How long a new connection may take for its greeting.
  absl::Duration greeting_timeout = absl::Seconds(10);
  // Who was refused and why, a line each: the first ten, then each time their
  // number has doubled; from the server's thread. Null: stderr.
  std::function<void(const std::string& line)> log;
};

class StoreServer {
 public:
  // AlreadyExists when the port is taken.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(
      const StoreServerOptions& options);
  ~StoreServer();

  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const { return port_; }
  // Until no client is connected: a rank that serves waits here before it ends.
  // False when some still are after `timeout`.
  bool WaitUntilUnused(absl::Duration timeout);

 private:
  struct Connection;

  StoreServer(const StoreServerOptions& options, UniqueFd listener,
              UniqueFd wake_read, UniqueFd wake_write);
  void Serve();
  void Accept();
  // Says that a peer that is not of the job is closed.
  void Refuse(const Connection& connection, absl::string_view why);
  // Reads and answers; false when the connection is to be closed.
  bool Read(Connection& connection);
  bool Flush(Connection& connection);
  void AnswerWaiting();

  const StoreServerOptions options_;
  const UniqueFd listener_;
  const UniqueFd wake_read_;  // readable: stop
  UniqueFd wake_write_;
  const int port_;
  InProcessStore store_;
  std::list<Connection> connections_;  // of the thread, as is refused_
  int64_t refused_ = 0;

  std::mutex mutex_;
  std::condition_variable unused_;
  int clients_ = 0;  // guarded by mutex_
  std::thread thread_;
};

// 128 random bits in hexadecimal.
std::string MakeJobToken();

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_STORE_SERVER_H_
