#include "kernels/collective/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<AddressList> Resolve(const std::string& host, int port,
                                    int flags) {
  addrinfo hints{};
  hints.ai_flags = flags | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve host '", host,
                                               "': ", gai_strerror(error)));
  }
  return AddressList(list, freeaddrinfo);
}

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1";
}

// Until the socket is ready or the deadline has passed.
absl::Status WaitReady(int fd, short events, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("no answer in time");
    }
    pollfd poller{.fd = fd, .events = events, .revents = 0};
    // Rounded up, so that it does not spin before the deadline; at most a
    // minute, so that it does not overflow.
    const int64_t wait =
        absl::ToInt64Milliseconds(std::min(left, absl::Minutes(1))) + 1;
    const int ready = poll(&poller, 1, static_cast<int>(wait));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
  }
}

absl::Status ConnectOnce(const addrinfo& address, absl::Time deadline,
                         UniqueFd* connected) {
  UniqueFd fd(
      socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, "socket");
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return absl::ErrnoToStatus(errno, "connect");
    SG_RETURN_IF_ERROR(WaitReady(fd.get(), POLLOUT, deadline));
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return absl::ErrnoToStatus(error, "connect");
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  *connected = std::move(fd);
  return absl::OkStatus();
}

}  // namespace

void UniqueFd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<UniqueFd> Listen(const std::string& address, int port) {
  absl::Status status = absl::UnavailableError("no address to listen on");
  SG_ASSIGN_OR_RETURN(const AddressList list,
                      Resolve(address, port, AI_PASSIVE));
  // IPv6 first: with V6ONLY off it takes IPv4 too.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      UniqueFd fd(
          socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (fd.get() < 0) {
        status = absl::ErrnoToStatus(errno, "socket");
        continue;
      }
      const int on = 1, off = 0;
      setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (family == AF_INET6) {
        setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      }
      if (bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 &&
          listen(fd.get(), SOMAXCONN) == 0) {
        return fd;
      }
      status = absl::ErrnoToStatus(
          errno,
          absl::StrCat("cannot listen on port ", port, " of '", address, "'"));
      if (errno == EADDRINUSE)
        return absl::AlreadyExistsError(status.message());
    }
  }
  return status;
}

std::string ListenAddress(const std::string& host) {
  if (host.empty() || host == "localhost" || IsLoopback(host)) return host;
  const absl::StatusOr<AddressList> list = Resolve(host, 0, 0);
  if (!list.ok()) return "";
  std::set<std::string> addresses;
  for (const addrinfo* a = list->get(); a != nullptr; a = a->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      addresses.insert(text);
    }
  }
  if (addresses.size() != 1 || IsLoopback(*addresses.begin())) return "";
  return Listen(*addresses.begin(), 0).ok() ? *addresses.begin() : "";
}

int LocalPort(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

absl::StatusOr<std::string> LocalAddress(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char text[NI_MAXHOST];
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text,
                  sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return absl::UnavailableError("this side of a connection has no address");
  }
  return std::string(text);
}

std::string PeerAddress(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host,
                  sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "a peer that has left";
  }
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<UniqueFd> Connect(const std::string& host, int port,
                                 absl::Time deadline) {
  absl::Duration pause = absl::Milliseconds(10);
  for (;;) {
    absl::Status status;
    absl::StatusOr<AddressList> list = Resolve(host, port, 0);
    if (!list.ok()) {
      status = list.status();
    } else {
      for (const addrinfo* a = list->get(); a != nullptr; a = a->ai_next) {
        UniqueFd fd;
        status = ConnectOnce(*a, deadline, &fd);
        if (status.ok()) return fd;
      }
    }
    // Nobody listens yet, or the name is not known yet: hosts of a job do not
    // all start at once.
    if (absl::Now() + pause >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("cannot connect: ", status.message()));
    }
    poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(pause)));
    pause = std::min(pause * 2, absl::Milliseconds(500));
  }
}

absl::Status SendAll(int fd, absl::string_view data, absl::Time deadline) {
  while (!data.empty()) {
    const ssize_t sent = send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      data.remove_prefix(sent);
    } else if (errno == EAGAIN || errno == EINTR) {
      SG_RETURN_IF_ERROR(WaitReady(fd, POLLOUT, deadline));
    } else {
      return absl::UnavailableError(
          absl::StrCat("the connection was lost: ", strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int fd, void* data, size_t bytes, absl::Time deadline) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(fd, next, bytes, 0);
    if (got > 0) {
      next += got;
      bytes -= got;
    } else if (got == 0) {
      return absl::UnavailableError("the connection was closed");
    } else if (errno == EAGAIN || errno == EINTR) {
      SG_RETURN_IF_ERROR(WaitReady(fd, POLLIN, deadline));
    } else {
      return absl::UnavailableError(
          absl::StrCat("the connection was lost: ", strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
