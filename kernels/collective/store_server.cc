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
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/collective/store_protocol.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// What a connection may send before its greeting is complete.
constexpr size_t kMaxGreeting = 4096;

// Connections that have not greeted yet.
constexpr int kMaxStrangers = 256;

// Takes values from the front of a buffer.
class Parser {
 public:
  explicit Parser(absl::string_view data) : data_(data) {}

  template <typename T>
  bool Number(T* value) {
    if (data_.size() - used_ < sizeof(T)) return false;
    std::memcpy(value, data_.data() + used_, sizeof(T));
    used_ += sizeof(T);
    return true;
  }
  bool Text(std::string* text) {
    uint64_t size = 0;
    if (!Number(&size)) return false;
    malformed_ = malformed_ || size > kMaxStoreString;
    if (malformed_ || data_.size() - used_ < size) return false;
    text->assign(data_.data() + used_, size);
    used_ += size;
    return true;
  }
  bool List(std::vector<std::string>* list) {
    uint64_t size = 0;
    if (!Number(&size)) return false;
    malformed_ = malformed_ || size > kMaxStoreString / sizeof(uint64_t);
    for (uint64_t i = 0; i < size && !malformed_; ++i) {
      if (!Text(&list->emplace_back())) return false;
    }
    return !malformed_;
  }

  size_t used() const { return used_; }
  bool malformed() const { return malformed_; }

 private:
  const absl::string_view data_;
  size_t used_ = 0;
  bool malformed_ = false;
};

// Takes as long wherever the first difference is.
bool SameToken(absl::string_view a, absl::string_view b) {
  unsigned char difference = a.size() != b.size();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace

struct StoreServer::Connection {
  UniqueFd fd;
  absl::Time deadline;  // of the greeting
  std::string in;
  std::string out;
  bool validated = false;
  bool welcome = false;
  bool refused = false;            // to be closed when `out` is sent
  std::vector<std::string> waits;  // keys of the wait that goes on, if any
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
    for (const Connection& c : connections_) {
      const short out = c.out.empty() ? 0 : POLLOUT;
      polled.push_back({.fd = c.fd.get(),
                        .events = static_cast<short>(POLLIN | out),
                        .revents = 0});
      if (!c.welcome) next = std::min(next, c.deadline);
      clients += c.welcome;
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
      bool keep = it->welcome || now < it->deadline;
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
  const auto greets = [](const Connection& c) { return !c.welcome; };
  if (std::count_if(connections_.begin(), connections_.end(), greets) >=
      kMaxStrangers) {
    connections_.erase(
        std::find_if(connections_.begin(), connections_.end(), greets));
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // A host that vanished without a word is noticed by and by.
  setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  Connection& connection = connections_.emplace_back();
  connection.fd = std::move(fd);
  connection.deadline = absl::Now() + options_.greeting_timeout;
}

bool StoreServer::Read(Connection& connection) {
  char buffer[65536];
  const ssize_t got = recv(connection.fd.get(), buffer, sizeof(buffer), 0);
  if (got == 0) return false;
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  connection.in.append(buffer, got);
  return Handle(connection);
}

bool StoreServer::Handle(Connection& connection) {
  // Requests behind a wait are answered after it.
  while (!connection.in.empty() && connection.waits.empty() &&
         !connection.refused) {
    Parser parser(connection.in);
    std::string key, value;
    std::vector<std::string> keys;
    uint8_t request = 0;
    parser.Number(&request);
    const StoreRequest kind = static_cast<StoreRequest>(request);
    bool complete = false;
    if (!connection.validated) {
      uint32_t magic = 0;
      if (kind != StoreRequest::kValidate) return false;
      complete = parser.Number(&magic);
      if (complete && magic != kValidateMagic) return false;
      connection.validated = complete;
      connection.welcome = complete && options_.token.empty();
    } else if (kind == StoreRequest::kHello) {
      complete = parser.Text(&value);
      if (complete) {
        const bool same =
            options_.token.empty() || SameToken(value, options_.token);
        connection.welcome = same;
        connection.refused = !same;
        AppendNumber<uint8_t>(&connection.out, same ? 0 : 1);
      }
    } else if (!connection.welcome) {
      return false;
    } else {
      switch (kind) {
        case StoreRequest::kSet:
          complete = parser.Text(&key) && parser.Text(&value);
          if (complete && !store_.Set(key, value).ok()) return false;
          break;
        case StoreRequest::kGet:
          complete = parser.Text(&key);
          if (complete) {
            absl::StatusOr<std::string> got =
                store_.Get(key, absl::ZeroDuration());
            if (!got.ok()) return false;
            AppendText(&connection.out, *got);
          }
          break;
        case StoreRequest::kAdd: {
          int64_t delta = 0;
          complete = parser.Text(&key) && parser.Number(&delta);
          if (complete) {
            const absl::StatusOr<int64_t> sum = store_.Add(key, delta);
            if (!sum.ok()) return false;
            AppendNumber<int64_t>(&connection.out, *sum);
          }
          break;
        }
        case StoreRequest::kCheck:
          complete = parser.List(&keys);
          if (complete) {
            AppendNumber<uint8_t>(&connection.out, *store_.Check(keys) ? 0 : 1);
          }
          break;
        case StoreRequest::kWait:
          complete = parser.List(&keys);
          if (complete && *store_.Check(keys)) {
            AppendNumber<uint8_t>(&connection.out, 0);
          } else if (complete) {
            connection.waits = std::move(keys);
          }
          break;
        case StoreRequest::kDelete:
          complete = parser.Text(&key);
          if (complete) {
            AppendNumber<int64_t>(&connection.out, *store_.Delete(key));
          }
          break;
        default:
          return false;
      }
    }
    if (parser.malformed()) return false;
    if (!complete) {
      return connection.welcome || connection.in.size() <= kMaxGreeting;
    }
    connection.in.erase(0, parser.used());
  }
  return true;
}

bool StoreServer::Flush(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent = send(connection.fd.get(), connection.out.data(),
                              connection.out.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    connection.out.erase(0, sent);
  }
  return !connection.refused;
}

void StoreServer::AnswerWaiting() {
  // An answer may be followed by requests that set further keys.
  for (bool again = true; again;) {
    again = false;
    for (auto it = connections_.begin(); it != connections_.end();) {
      bool keep = true;
      if (!it->waits.empty() && *store_.Check(it->waits)) {
        it->waits.clear();
        AppendNumber<uint8_t>(&it->out, 0);
        keep = Handle(*it) && Flush(*it);
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
