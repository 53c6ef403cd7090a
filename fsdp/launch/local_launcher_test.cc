// Runs itself as the ranks: SG_TEST_ROLE says what a rank does.

#include "fsdp/launch/local_launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/launch/environment.h"
#include "fsdp/launch/error_file.h"
#include "fsdp/launch/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/collective/store.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(60);

[[noreturn]] void WaitForever() {
  for (;;) pause();
}

volatile sig_atomic_t got_sigterm = 0;

// What a rank does; its exit status.
int RunRole(const std::string& role) {
  const LaunchEnvironment environment =
      *ParseLaunchEnvironment(CurrentEnvironment());
  const int rank = environment.rank;
  auto rendezvous = Rendezvous::Join(environment, kLong);
  SG_CHECK_OK(rendezvous);
  Store& store = (*rendezvous)->store();
  std::vector<int> world;
  for (int r = 0; r < environment.world_size; ++r) world.push_back(r);
  const auto meet = [&] {
    SG_CHECK_OK(ExchangeThroughStore(store, "meet", rank, world, "", kLong));
  };
  if (role == "meet") {
    SG_CHECK(environment.launcher == Launcher::kOwn);
    SG_CHECK_EQ(environment.local_rank, rank);
    SG_CHECK_EQ(environment.local_world_size, environment.world_size);
    const auto all = ExchangeThroughStore(store, "all", rank, world,
                                          absl::StrCat("r", rank), kLong);
    SG_CHECK_OK(all);
    printf("rank %d of %d saw %s\n", rank, environment.world_size,
           all->back().c_str());
    fprintf(stderr, "errors of rank %d\n", rank);
    return 0;
  }
  if (role == "config") {
    meet();
    SG_CHECK_OK(WriteErrorFile(environment.error_file,
                               absl::StrCat("data.path is wrong, says ", rank),
                               absl::FromUnixSeconds(100 - rank)));
    return 2;
  }
  if (role == "die") {
    meet();
    if (rank == 1) raise(SIGKILL);
    // One notices by itself, with an error of its own; others never do.
    if (rank == 0) {
      SG_CHECK_OK(WriteErrorFile(environment.error_file, "rank 1 is lost",
                                 absl::FromUnixSeconds(1)));
      return 1;
    }
    WaitForever();
  }
  if (role == "stubborn") {
    signal(SIGTERM, SIG_IGN);
    meet();
    if (rank == 1) {
      printf("first line\nlast line\n");
      return 3;
    }
    WaitForever();
  }
  if (role == "save") {
    // A handler that is there before the signal can come.
    signal(SIGTERM, [](int) { got_sigterm = 1; });
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    meet();
    if (rank == 0) kill(getppid(), SIGTERM);  // somebody stops the launcher
    while (!got_sigterm) sigsuspend(&before);
    printf("saved\n");
    return 0;
  }
  if (role == "orphans") {
    meet();
    WaitForever();
  }
  return 99;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class LocalLauncherTest : public testing::Test {
 protected:
  LocalLaunchOptions Options(const std::string& role, int num_ranks) {
    const std::string name =
        testing::UnitTest::GetInstance()->current_test_info()->name();
    return {
        .num_ranks = num_ranks,
        .command = {"/proc/self/exe"},
        .log_directory = absl::StrCat(testing::TempDir(), "/", name, "/logs"),
        .environment = {{"SG_TEST_ROLE", role}},
        .notice = kLong,
        .grace = kLong};
  }
};

TEST_F(LocalLauncherTest, RanksMeetAndHaveLogs) {
  LocalLaunchOptions options = Options("meet", 3);
  const LaunchResult result = RunLocalRanks(options);
  EXPECT_EQ(result.exit_status, 0) << result.message;
  EXPECT_EQ(result.message, "");
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(Read(absl::StrCat(options.log_directory, "/rank_", r, ".log")),
                AllOf(HasSubstr(absl::StrCat("rank ", r, " of 3 saw r2")),
                      HasSubstr(absl::StrCat("errors of rank ", r))));
  }
  // A restart adds to the logs.
  options.restart_count = 1;
  EXPECT_EQ(RunLocalRanks(options).exit_status, 0);
  const std::string log = Read(options.log_directory + "/rank_1.log");
  EXPECT_NE(log.find("rank 1 of 3"), log.rfind("rank 1 of 3"));
}

TEST_F(LocalLauncherTest, OneRankWithoutLogs) {
  LocalLaunchOptions options = Options("meet", 1);
  options.log_directory = "";
  EXPECT_EQ(RunLocalRanks(options).exit_status, 0);
}

TEST_F(LocalLauncherTest, ConfigErrorIsTwoAndTheEarliestIsTold) {
  const LaunchResult result = RunLocalRanks(Options("config", 3));
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.message,
              AllOf(StartsWith("rank 2 exited with status 2: "
                               "data.path is wrong, says 2"),
                    HasSubstr("then rank 0 exited with status 2"),
                    HasSubstr("logs are in")));
}

TEST_F(LocalLauncherTest, KilledRankIsTheCauseAndAllStop) {
  LocalLaunchOptions options = Options("die", 3);
  options.notice = absl::Milliseconds(200);
  const LaunchResult result = RunLocalRanks(options);
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.message,
              AllOf(StartsWith("rank 1 was killed by signal 9"),
                    HasSubstr("then rank 2 was killed by signal 15")));
}

TEST_F(LocalLauncherTest, RanksThatIgnoreSigtermAreKilled) {
  LocalLaunchOptions options = Options("stubborn", 2);
  options.notice = absl::Milliseconds(1);
  options.grace = absl::Milliseconds(1);
  const LaunchResult result = RunLocalRanks(options);
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.message,
              AllOf(StartsWith("rank 1 exited with status 3"),
                    HasSubstr("first line\nlast line"),
                    HasSubstr("then rank 0 was killed by signal 9")));
}

TEST_F(LocalLauncherTest, SigtermLetsRanksSave) {
  const LocalLaunchOptions options = Options("save", 2);
  const LaunchResult result = RunLocalRanks(options);
  EXPECT_EQ(result.exit_status, 0) << result.message;
  EXPECT_EQ(Read(options.log_directory + "/rank_1.log"), "saved\n");
}

TEST_F(LocalLauncherTest, WrongOptionsAreTwo) {
  LocalLaunchOptions options = Options("meet", 0);
  LaunchResult result = RunLocalRanks(options);
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.message, HasSubstr("ranks is 0"));

  options = Options("meet", 2);
  options.command = {"/no/such/program"};
  result = RunLocalRanks(options);
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.message, HasSubstr("'/no/such/program'"));

  options = Options("meet", 2);
  options.log_directory = "/proc/none/logs";
  result = RunLocalRanks(options);
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.message, HasSubstr("'/proc/none/logs'"));
}

TEST_F(LocalLauncherTest, NoRankOutlivesALauncherThatIsKilled) {
  // The ranks inherit the writing end: it is closed when all are gone.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const LocalLaunchOptions options = Options("orphans", 2);
  fflush(nullptr);
  const pid_t launcher = fork();
  if (launcher == 0) {
    close(ends[0]);
    RunLocalRanks(options);
    _exit(0);
  }
  close(ends[1]);
  // A launcher has no children before it starts them: wait for the logs, which
  // are made first, by killing it only when a rank's process group is there.
  const std::string children =
      absl::StrCat("/proc/", launcher, "/task/", launcher, "/children");
  while (Read(children).empty()) sched_yield();
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);  // returns only when all have ended
  close(ends[0]);
}

}  // namespace
}  // namespace shardgraph

int main(int argc, char** argv) {
  if (const char* role = getenv("SG_TEST_ROLE")) {
    return shardgraph::RunRole(role);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
