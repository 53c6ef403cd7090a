// Strangers at the rendezvous port of a running job: without the token, with
// garbage, half-open, and in a flood. They are refused and logged, and the run
// computes what it computes without them.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/process.h"
#include "tests/faults/small_run.h"

namespace shardgraph {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kTrain[] = "tests/faults/faulty_train";

// A connection to a port of this host; -1 when it was not let in.
int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
    return fd;
  close(fd);
  return -1;
}

// Says `text` and waits until the other side hangs up; what it has answered.
std::string Talk(int port, const std::string& text) {
  const int fd = Connect(port);
  if (fd < 0) return "";
  send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  std::string answer;
  char byte;
  while (recv(fd, &byte, 1, 0) == 1) answer.push_back(byte);
  close(fd);
  return answer;
}

class RendezvousTest : public testing::Test {
 protected:
  RendezvousTest() : folder_(TestFolder()) {
    AdoptOrphans();
    WriteText(folder_ + "/config.textproto", SmallConfig());
    WriteTokens(folder_ + "/tokens.bin", SomeTokens(5000));
  }

  std::vector<std::string> Arguments(const std::string& run) const {
    return {absl::StrCat("--config=", folder_, "/config.textproto"),
            "--nproc=2",
            absl::StrCat("--run_dir=", folder_, "/", run),
            absl::StrCat("data.path=", folder_, "/tokens.bin"),
            "run.timeout_seconds=120",
            "run.steps=100000000"};
  }

  // Losses and norms of each step, times apart.
  std::vector<std::string> Metrics(const std::string& run) const {
    std::vector<std::string> lines = absl::StrSplit(
        ReadText(absl::StrCat(folder_, "/", run, "/metrics.jsonl")), '\n',
        absl::SkipEmpty());
    for (std::string& line : lines)
      line.resize(std::min(line.size(), line.find(", \"tokens_per_second\"")));
    return lines;
  }

  const std::string folder_;
};

TEST_F(RendezvousTest, StrangersAreRefusedAndDisturbNobody) {
  Process quiet(kTrain, Arguments("quiet"));
  ASSERT_TRUE(quiet.ReadUntil("tokens/s", 60)) << quiet.output();
  kill(quiet.pid(), SIGTERM);
  ASSERT_EQ(quiet.Wait(), 0) << quiet.output();

  Process job(kTrain, Arguments("attacked"));
  ASSERT_TRUE(job.ReadUntil("tokens/s", 5)) << job.output();
  const pid_t pid = FindRank(job.pid(), 1);
  ASSERT_GT(pid, 0);
  int port = 0;
  const std::string environment =
      ReadText(absl::StrCat("/proc/", pid, "/environ"));
  for (absl::string_view variable : absl::StrSplit(environment, '\0')) {
    if (!absl::ConsumePrefix(&variable, "MASTER_PORT=")) continue;
    ASSERT_TRUE(absl::SimpleAtoi(variable, &port));
  }
  ASSERT_GT(port, 0);

  const std::string validate("\x00\xce\xf7\x85\x3c", 5);
  const std::string token("\x40\x05\0\0\0\0\0\0\0wrong", 14);
  EXPECT_EQ(Talk(port, validate + token), "\x01");
  EXPECT_EQ(Talk(port, "GET / HTTP/1.1\r\n\r\n"), "");
  EXPECT_EQ(Talk(port, std::string(100000, '\xff')), "");
  // Asks for a key without the token.
  EXPECT_EQ(Talk(port, validate + "\x03\x01" + std::string(7, '\0') + "k"), "");
  std::vector<int> open;
  for (int i = 0; i < 900; ++i) {
    const int fd = Connect(port);
    if (fd < 0) continue;
    if (i % 2 == 0) send(fd, validate.data(), i % 5, MSG_NOSIGNAL);
    open.push_back(fd);
  }
  EXPECT_GT(open.size(), 300u);
  // Strangers leave only once some of them have been refused.
  ASSERT_TRUE(job.ReadUntil("too many connections without a greeting", 1))
      << job.output();
  ASSERT_TRUE(job.ReadUntil("tokens/s", 60)) << job.output();
  for (int fd : open) close(fd);
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), 0) << job.output();
  EXPECT_FALSE(AnyDescendantLeft());
  EXPECT_THAT(job.output(),
              AllOf(HasSubstr(absl::StrCat("rendezvous at port ", port,
                                           ": refused 127.0.0.1:")),
                    HasSubstr("its job token is another"),
                    HasSubstr("its greeting is not that of a rank"),
                    HasSubstr("too many connections without a greeting")));
  std::vector<std::string> expected = Metrics("quiet"),
                           actual = Metrics("attacked");
  const size_t steps = std::min(expected.size(), actual.size());
  EXPECT_GE(steps, 55u);
  expected.resize(steps);
  actual.resize(steps);
  EXPECT_EQ(actual, expected);
}

}  // namespace
}  // namespace shardgraph
