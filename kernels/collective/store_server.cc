#include "kernels/collective/store_server.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/collective/store_session.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// Connections that have not greeted yet.
constexpr int kMaxStrangers = 256;

// Refusals that are said one by one.
constexpr int64_t kFirstRefusals = 10;

}  // namespace

struct StoreServer::Connection {
  Connection(Store& store, const std::string& token) : session(store, token) {}

  UniqueFd fd;
  absl::Time deadline;  // of the greeting
  std::string peer;     // address and port
  StoreSession session;
};

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(
    const StoreServerOptions& options) {
  SG_ASSIGN_OR_RETURN(UniqueFd listener,
                      Listen(ListenAddress(options.host), options.port));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  return std::unique_ptr<StoreServer>(new StoreServer(
      options, std::move(listener), UniqueFd(ends[0]), UniqueFd(ends[1])));
}

StoreServer::StoreServer(const StoreServerOptions& options, UniqueFd listener,
                         UniqueFd wake_read, UniqueFd wake_write)
    : options_(options),
      listener_(std::move(listener)),
      wake_read_(std::move(wake_read)),
      wake_write_(std::move(wake_write)),
      port_(LocalPort(listener_.get())) {
  thread_ = std::thread([this] { Serve(); });
}

StoreServer::~StoreServer() {
  wake_write_.Reset();
  thread_.join();
}

bool StoreServer::WaitUntilUnused(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return unused_.wait_until(
      lock,
      std::chrono::steady_clock::now() +
          absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365))),
      [this] { return clients_ == 0; });
}

void StoreServer::Serve() {
  std::vector<pollfd> polled;
  for (;;) {
    polled.assign({{.fd = wake_read_.get(), .events = POLLIN, .revents = 0},
                   {.fd = listener_.get(), .events = POLLIN, .revents = 0}});
    absl::Time next = absl::InfiniteFuture();
    int clients = 0;
    for (Connection& c : connections_) {
      const short out = c.session.out().empty() ? 0 : POLLOUT;
      polled.push_back({.fd = c.fd.get(),
                        .events = static_cast<short>(POLLIN | out),
                        .revents = 0});
      if (!c.session.welcome()) next = std::min(next, c.deadline);
      clients += c.session.welcome();
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      clients_ = clients;
      if (clients == 0) unused_.notify_all();
    }
    int wait = -1;
    if (next != absl::InfiniteFuture()) {
      wait = static_cast<int>(
          absl::ToInt64Milliseconds(std::clamp(
              next - absl::Now(), absl::ZeroDuration(), absl::Hours(1))) +
          1);
    }
    if (poll(polled.data(), polled.size(), wait) < 0) {
      SG_CHECK_EQ(errno, EINTR);
      continue;
    }
    if (polled[0].revents != 0) return;
    const absl::Time now = absl::Now();
    size_t i = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++i) {
      const short events = polled[i].revents;
      bool keep = it->session.welcome() || now < it->deadline;
      if (!keep) Refuse(*it, "no greeting in time");
      if (keep && (events & (POLLIN | POLLHUP | POLLERR)) != 0) {
        keep = Read(*it);
      }
      if (keep) keep = Flush(*it);
      it = keep ? std::next(it) : connections_.erase(it);
    }
    AnswerWaiting();
    if (polled[1].revents != 0) Accept();
  }
}

void StoreServer::Accept() {
  UniqueFd fd(
      accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.get() < 0) return;  // gone again
  // Strangers must not use up the descriptors: the oldest goes.
  const auto greets = [](const Connection& c) { return !c.session.welcome(); };
  if (std::count_if(connections_.begin(), connections_.end(), greets) >=
      kMaxStrangers) {
    const auto oldest =
        std::find_if(connections_.begin(), connections_.end(), greets);
    Refuse(*oldest, "too many connections without a greeting");
    connections_.erase(oldest);
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // A host that vanished without a word is noticed by and by.
  setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  Connection& connection = connections_.emplace_back(store_, options_.token);
  connection.fd = std::move(fd);
  connection.peer = PeerAddress(connection.fd.get());
  connection.deadline = absl::Now() + options_.greeting_timeout;
}

void StoreServer::Refuse(const Connection& connection, absl::string_view why) {
  ++refused_;
  const bool doubled = (refused_ & (refused_ - 1)) == 0;
  if (refused_ > kFirstRefusals && !doubled) return;
  const std::string line =
      absl::StrCat("rendezvous at port ", port_, ": refused ", connection.peer,
                   ": ", why, " (", refused_, " refused so far)");
  if (options_.log != nullptr) return options_.log(line);
  std::fprintf(stderr, "%s\n", line.c_str());
  std::fflush(stderr);
}

bool StoreServer::Read(Connection& connection) {
  char buffer[65536];
  const ssize_t got = recv(connection.fd.get(), buffer, sizeof(buffer), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  StoreSession& session = connection.session;
  const bool stranger = !session.welcome();
  if (got <= 0) {
    if (stranger) Refuse(connection, "it left without a greeting");
    return false;
  }
  const bool keep = session.Receive(absl::string_view(buffer, got));
  if (stranger && session.refused()) {
    Refuse(connection, "its job token is another");
  } else if (stranger && !keep) {
    Refuse(connection, "its greeting is not that of a rank");
  }
  return keep;
}

bool StoreServer::Flush(Connection& connection) {
  std::string& out = connection.session.out();
  while (!out.empty()) {
    const ssize_t sent =
        send(connection.fd.get(), out.data(), out.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    out.erase(0, sent);
  }
  return !connection.session.refused();
}

void StoreServer::AnswerWaiting() {
  // An answer may be followed by requests that set further keys.
  for (bool again = true; again;) {
    again = false;
    for (auto it = connections_.begin(); it != connections_.end();) {
      bool keep = true;
      if (it->session.WaitIsOver()) {
        keep = it->session.GoOn() && Flush(*it);
        again = true;
      }
      it = keep ? std::next(it) : connections_.erase(it);
    }
  }
}

std::string MakeJobToken() {
  char bits[16];
  SG_CHECK_EQ(getrandom(bits, sizeof(bits), 0),
              static_cast<ssize_t>(sizeof(bits)));
  return absl::BytesToHexString(absl::string_view(bits, sizeof(bits)));
}

}  // namespace shardgraph
