#include "kernels/collective/test_ranks.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/collective/factory.h"
#include "kernels/collective/gloo.h"
#include "kernels/collective/loopback.h"
#include "kernels/collective/shared_memory.h"
#include "kernels/collective/store_server.h"
#include "kernels/collective/tcp_store.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// How long ranks may take to find each other.
constexpr absl::Duration kRendezvous = absl::Seconds(120);

struct Death {};

class ThreadRank final : public TestRank {
 public:
  ThreadRank(CommunicatorFactory& factory, Store& store)
      : factory_(factory), store_(store) {}
  CommunicatorFactory& factory() override { return factory_; }
  Store& store() override { return store_; }
  void Die() override { throw Death(); }
  void AskToBeKilled() override { throw Death(); }

 private:
  CommunicatorFactory& factory_;
  Store& store_;
};

RankResult RunBody(TestRank& rank, const RankBody& body) {
  absl::StatusOr<std::string> result = body(rank);
  if (!result.ok()) return {result.status(), ""};
  return {absl::OkStatus(), *std::move(result)};
}

std::vector<RankResult> RunThreads(int size, absl::Duration timeout,
                                   const RankBody& body) {
  std::vector<RankResult> results(size);
  InProcessStore store;
  auto factories = MakeLoopbackWorld(size, {.timeout = timeout});
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      ThreadRank rank(*factories[r], store);
      try {
        results[r] = RunBody(rank, body);
      } catch (const Death&) {
        results[r].died = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// A forked process and what it writes.
struct Child {
  pid_t pid = -1;
  int from = -1;
  std::string text;
};

void WriteAll(int fd, absl::string_view data) {
  while (!data.empty()) {
    const ssize_t n = write(fd, data.data(), data.size());
    SG_CHECK(n > 0) << strerror(errno);
    data.remove_prefix(n);
  }
}

// `run` gets a descriptor that the parent reads from.
Child Fork(const std::function<void(int)>& run) {
  int ends[2];
  SG_CHECK_EQ(pipe(ends), 0);
  fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  SG_CHECK(pid >= 0) << strerror(errno);
  if (pid > 0) {
    close(ends[1]);
    return {.pid = pid, .from = ends[0]};
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  close(ends[0]);
  run(ends[1]);
  fflush(nullptr);
  _exit(0);
}

class ProcessRank final : public TestRank {
 public:
  ProcessRank(CommunicatorFactory& factory, Store& store, int to_parent)
      : factory_(factory), store_(store), to_parent_(to_parent) {}
  CommunicatorFactory& factory() override { return factory_; }
  Store& store() override { return store_; }
  void Die() override {
    raise(SIGKILL);
    abort();
  }
  void AskToBeKilled() override { WriteAll(to_parent_, "K"); }

 private:
  CommunicatorFactory& factory_;
  Store& store_;
  const int to_parent_;
};

absl::StatusOr<std::unique_ptr<CommunicatorFactory>> MakeFactory(
    TestTransport transport, Store& store, int rank, int size) {
  switch (transport) {
    case TestTransport::kLoopback:
    case TestTransport::kNcclDouble:
      break;
    case TestTransport::kSharedMemory:
      return MakeSharedMemoryFactory(
          store, {.rank = rank, .size = size, .timeout = kRendezvous});
    case TestTransport::kGloo:
      return MakeGlooFactory(
          store, {.rank = rank, .size = size, .timeout = kRendezvous});
    case TestTransport::kAutomatic:
      return MakeCpuCommunicatorFactory(
          store, {.rank = rank, .size = size, .timeout = kRendezvous});
  }
  return absl::InvalidArgumentError("no transport between processes");
}

RankResult RunProcess(TestTransport transport, int r, int size, int port,
                      absl::Duration timeout, const RankBody& body,
                      int to_parent) {
  auto store = TcpStore::Connect({.host = "127.0.0.1",
                                  .port = port,
                                  .token = "token",
                                  .self = absl::StrCat("rank ", r),
                                  .timeout = kRendezvous});
  if (!store.ok()) return {store.status(), ""};
  PrefixStore prefixed(**store, "job");
  auto factory = MakeFactory(transport, prefixed, r, size);
  if (!factory.ok()) return {factory.status(), ""};
  (*factory)->SetTimeout(timeout);
  ProcessRank rank(**factory, **store, to_parent);
  return RunBody(rank, body);
}

std::vector<RankResult> RunProcesses(TestTransport transport, int size,
                                     absl::Duration timeout,
                                     const RankBody& body) {
  // The store has a process of its own, so that this one stays without threads
  // and can fork.
  const Child server = Fork([](int to_parent) {
    auto server = StoreServer::Start({.host = "127.0.0.1", .token = "token"});
    SG_CHECK_OK(server);
    const int port = (*server)->port();
    WriteAll(to_parent, absl::string_view(reinterpret_cast<const char*>(&port),
                                          sizeof(port)));
    pause();
  });
  int port = 0;
  SG_CHECK_EQ(read(server.from, &port, sizeof(port)),
              static_cast<ssize_t>(sizeof(port)));

  std::vector<Child> children;
  for (int r = 0; r < size; ++r) {
    children.push_back(Fork([&](int to_parent) {
      const RankResult result =
          RunProcess(transport, r, size, port, timeout, body, to_parent);
      // "R", the code as a letter, the length of the message, both texts.
      std::string text = "R";
      text.push_back(static_cast<char>('a' + result.status.raw_code()));
      absl::StrAppend(&text, result.status.message().size(), " ",
                      result.status.message(), result.output);
      WriteAll(to_parent, text);
    }));
  }
  for (;;) {
    std::vector<pollfd> polled;
    for (const Child& child : children) {
      if (child.from >= 0) {
        polled.push_back({.fd = child.from, .events = POLLIN, .revents = 0});
      }
    }
    if (polled.empty()) break;
    poll(polled.data(), polled.size(), -1);
    for (const pollfd& p : polled) {
      if (p.revents == 0) continue;
      for (Child& child : children) {
        if (child.from != p.fd) continue;
        char buffer[4096];
        const ssize_t n = read(child.from, buffer, sizeof(buffer));
        if (n <= 0) {
          close(child.from);
          child.from = -1;
        } else if (child.text.empty() && buffer[0] == 'K') {
          kill(child.pid, SIGKILL);
        } else {
          child.text.append(buffer, n);
        }
      }
    }
  }
  std::vector<RankResult> results(size);
  for (int r = 0; r < size; ++r) {
    int status = 0;
    SG_CHECK_EQ(waitpid(children[r].pid, &status, 0), children[r].pid);
    const std::string& text = children[r].text;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      results[r].died = true;
    } else if (!WIFEXITED(status) || text.empty()) {
      results[r].status = absl::InternalError(
          absl::StrCat("rank ", r, " ended with wait status ", status));
    } else {
      char* end = nullptr;
      const size_t length = strtoul(text.c_str() + 2, &end, 10);
      const size_t begin = end - text.c_str() + 1;
      results[r].status =
          absl::Status(static_cast<absl::StatusCode>(text[1] - 'a'),
                       text.substr(begin, length));
      results[r].output = text.substr(begin + length);
    }
  }
  kill(server.pid, SIGKILL);
  waitpid(server.pid, nullptr, 0);
  close(server.from);
  return results;
}

absl::string_view TestTransportName(TestTransport transport) {
  switch (transport) {
    case TestTransport::kLoopback:
      return "Loopback";
    case TestTransport::kSharedMemory:
      return "SharedMemory";
    case TestTransport::kGloo:
      return "Gloo";
    case TestTransport::kAutomatic:
      return "Automatic";
    case TestTransport::kNcclDouble:
      return "NcclDouble";
  }
  return "";
}

}  // namespace

std::vector<RankResult> RunRanks(TestTransport transport, int size,
                                 absl::Duration timeout, const RankBody& body) {
  return transport == TestTransport::kLoopback
             ? RunThreads(size, timeout, body)
             : RunProcesses(transport, size, timeout, body);
}

std::vector<RankResult> RunRanks(const TestWorld& world, absl::Duration timeout,
                                 const RankBody& body) {
  return world.run != nullptr
             ? world.run(world.size, timeout, body)
             : RunRanks(world.transport, world.size, timeout, body);
}

std::vector<TestWorld> AllTestWorlds() {
  std::vector<TestWorld> worlds;
  for (const TestTransport transport :
       {TestTransport::kLoopback, TestTransport::kSharedMemory,
        TestTransport::kGloo}) {
    for (const int size : {1, 2, 3, 4}) worlds.push_back({transport, size});
  }
  worlds.push_back({TestTransport::kAutomatic, 3});
  return worlds;
}

std::string TestWorldName(const testing::TestParamInfo<TestWorld>& info) {
  return absl::StrCat(TestTransportName(info.param.transport), info.param.size);
}

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace shardgraph
