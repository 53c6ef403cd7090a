// TCP sockets with deadlines: what the store needs of them.
#ifndef KERNELS_COLLECTIVE_SOCKET_H_
#define KERNELS_COLLECTIVE_SOCKET_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace shardgraph {

// Owns a file descriptor; -1 is none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int get() const { return fd_; }
  void Reset();

 private:
  int fd_ = -1;
};

// A listening socket. An empty `address` means all interfaces, IPv4 and IPv6;
// port 0, any free one. AlreadyExists when the port is taken.
absl::StatusOr<UniqueFd> Listen(const std::string& address, int port);

// Where to listen so that clients reach this host as `host`, and others as
// little as possible: the one address that the name stands for. Empty, all
// interfaces, for an empty host and where that is in doubt: it stands for
// several addresses, for none of this host (a forwarded port), or for a
// loopback one without saying so (127.0.1.1 in /etc/hosts, where other hosts
// see another address).
std::string ListenAddress(const std::string& host);

// The port a socket is bound to.
int LocalPort(int fd);
// The numeric address of this side of a connection.
absl::StatusOr<std::string> LocalAddress(int fd);
// Numeric address and port of the other side, for people: "10.0.0.7:41234".
std::string PeerAddress(int fd);

// A connected, non-blocking socket. Tries again until `deadline` while nobody
// listens there yet.
absl::StatusOr<UniqueFd> Connect(const std::string& host, int port,
                                 absl::Time deadline);

// All of `data`, or DeadlineExceeded or Unavailable. The socket does not block.
absl::Status SendAll(int fd, absl::string_view data, absl::Time deadline);
absl::Status ReceiveAll(int fd, void* data, size_t bytes, absl::Time deadline);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_SOCKET_H_
