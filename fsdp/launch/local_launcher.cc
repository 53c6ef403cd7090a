#include "fsdp/launch/local_launcher.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "fsdp/launch/error_file.h"
#include "fsdp/launch/rank_process.h"
#include "kernels/check.h"
#include "kernels/collective/store_server.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int kMaxLocalRanks = 1024;
constexpr int kTailLines = 10;

// Blocks the signals that the launcher handles, until it goes.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    SG_CHECK(fd_ >= 0) << strerror(errno);
  }
  ~SignalBlock() {
    close(fd_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  int fd() const { return fd_; }
  const sigset_t& before() const { return before_; }
  // How many requests to stop have arrived; forgets all signals.
  int TakeStops() const {
    int stops = 0;
    signalfd_siginfo info;
    while (read(fd_, &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo != SIGCHLD) ++stops;
    }
    return stops;
  }

 private:
  sigset_t before_;
  int fd_;
};

class LocalJob {
 public:
  explicit LocalJob(const LocalLaunchOptions& options) : options_(options) {}

  LaunchResult Run() {
    const absl::Status status = Start();
    if (!status.ok()) {
      ranks_.clear();  // kills those that run
      return {.exit_status =
                  status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1,
              .message = std::string(status.message())};
    }
    while (AnyRunning()) Step();
    LaunchResult result = Conclude();
    result.stopped = stopped_;
    return result;
  }

 private:
  absl::Status Start() {
    if (options_.num_ranks < 1 || options_.num_ranks > kMaxLocalRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat("the number of ranks is ", options_.num_ranks,
                       "; allowed are 1 to ", kMaxLocalRanks));
    }
    if (options_.command.empty()) {
      return absl::InvalidArgumentError("there is no program to run as ranks");
    }
    if (!options_.log_directory.empty()) {
      std::error_code error;
      std::filesystem::create_directories(options_.log_directory, error);
      if (error) {
        return absl::InvalidArgumentError(
            absl::StrCat("cannot make the folder for logs '",
                         options_.log_directory, "': ", error.message()));
      }
    }
    const std::string token = MakeJobToken();
    SG_ASSIGN_OR_RETURN(
        store_, StoreServer::Start({.host = "127.0.0.1", .token = token}));
    EnvironmentMap environment = CurrentEnvironment();
    for (const auto& [name, value] : options_.environment) {
      environment[name] = value;
    }
    const std::string size = absl::StrCat(options_.num_ranks);
    environment["WORLD_SIZE"] = size;
    environment["LOCAL_WORLD_SIZE"] = size;
    environment["GROUP_RANK"] = "0";
    environment["MASTER_ADDR"] = "127.0.0.1";
    environment["MASTER_PORT"] = absl::StrCat(store_->port());
    environment["TORCHELASTIC_RUN_ID"] = absl::StrCat("local-", getpid());
    environment["TORCHELASTIC_RESTART_COUNT"] =
        absl::StrCat(options_.restart_count);
    environment[kTokenVariable] = token;
    environment.erase("TORCHELASTIC_ERROR_FILE");
    for (int r = 0; r < options_.num_ranks; ++r) {
      environment["RANK"] = environment["LOCAL_RANK"] = absl::StrCat(r);
      if (!options_.log_directory.empty()) {
        std::error_code ignored;
        std::filesystem::remove(ErrorPath(r), ignored);
        environment["TORCHELASTIC_ERROR_FILE"] = ErrorPath(r);
      }
      ranks_.push_back(std::make_unique<RankProcess>());
      SG_RETURN_IF_ERROR(
          ranks_.back()->Start({.rank = r,
                                .command = options_.command,
                                .environment = environment,
                                .log_path = LogPath(r),
                                .append = options_.restart_count > 0,
                                .pass_on = r == 0,
                                .signal_mask = signals_.before()}));
    }
    return absl::OkStatus();
  }

  std::string Path(int rank, absl::string_view suffix) const {
    if (options_.log_directory.empty()) return "";
    return absl::StrCat(options_.log_directory, "/rank_", rank, suffix);
  }
  std::string LogPath(int rank) const { return Path(rank, ".log"); }
  std::string ErrorPath(int rank) const { return Path(rank, ".error.json"); }

  bool AnyRunning() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->running(); });
  }

  void KillAll(int signal) const {
    for (const auto& rank : ranks_) rank->Kill(signal);
  }

  // Waits for something to happen and acts on it.
  void Step() {
    pollfd polled[3] = {{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
    for (int i = 0; i < 2; ++i) {
      polled[1 + i] = {
          .fd = ranks_[0]->output_fd(i), .events = POLLIN, .revents = 0};
    }
    // At most a second, in case a signal is taken by somebody else.
    const absl::Duration wait =
        std::clamp(next_ - absl::Now(), absl::ZeroDuration(), absl::Seconds(1));
    poll(polled, 3, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
    ranks_[0]->PassOn();
    for (int stops = signals_.TakeStops(); stops > 0; --stops) {
      stopped_ = true;
      SetPhase(phase_ < kTerminated ? kTerminated : kKilled);
    }
    for (const auto& rank : ranks_) {
      if (!rank->Reap() || !rank->failed()) continue;
      if (phase_ < kTerminated) failed_.push_back(rank.get());
      if (phase_ == kRunning) SetPhase(kNoticing);
    }
    if (absl::Now() >= next_) SetPhase(phase_ + 1);
  }

  enum { kRunning, kNoticing, kTerminated, kKilled };

  void SetPhase(int phase) {
    phase_ = std::min<int>(phase, kKilled);
    const absl::Time now = absl::Now();
    switch (phase_) {
      case kNoticing:
        next_ = now + options_.notice;
        break;
      case kTerminated:
        KillAll(SIGTERM);
        next_ = now + options_.grace;
        break;
      case kKilled:
        KillAll(SIGKILL);
        next_ = absl::InfiniteFuture();
        break;
    }
  }

  // The rank that failed first: one that a signal killed before those that gave
  // up because of it; then by what the error files say; then in the order in
  // which they ended.
  const RankProcess* RootCause() const {
    const auto time_of = [this](const RankProcess* rank) {
      const absl::StatusOr<RankError> error =
          ReadErrorFile(ErrorPath(rank->rank()));
      return rank->killed_by_signal() ? -1
             : error.ok()             ? error->unix_seconds
                                      : INT64_MAX;
    };
    return *std::min_element(failed_.begin(), failed_.end(),
                             [&](const RankProcess* a, const RankProcess* b) {
                               return time_of(a) < time_of(b);
                             });
  }

  LaunchResult Conclude() const {
    if (failed_.empty()) {
      const bool all_well =
          std::none_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->failed(); });
      if (all_well) return {};
      // Only ranks that were told to stop have failed.
      std::string message = "stopped on request";
      for (const auto& rank : ranks_) {
        const absl::StatusOr<RankError> error =
            ReadErrorFile(ErrorPath(rank->rank()));
        if (!rank->failed() || !error.ok()) continue;
        absl::StrAppend(&message, ": rank ", rank->rank(), ": ",
                        error->message);
        break;
      }
      return {.exit_status = 1, .message = Others(nullptr, std::move(message))};
    }
    const RankProcess& root = *RootCause();
    std::string message = root.Describe();
    const absl::StatusOr<RankError> error =
        ReadErrorFile(ErrorPath(root.rank()));
    if (error.ok()) {
      absl::StrAppend(&message, ": ", error->message);
    } else {
      const std::string tail = LastLines(LogPath(root.rank()), kTailLines);
      if (!tail.empty()) absl::StrAppend(&message, "; its last lines:\n", tail);
    }
    return {.exit_status = root.exit_code() == 2 ? 2 : 1,
            .message = Others(&root, std::move(message))};
  }

  std::string Others(const RankProcess* root, std::string message) const {
    for (const auto& rank : ranks_) {
      if (rank.get() != root && rank->failed()) {
        absl::StrAppend(&message, "\nthen ", rank->Describe());
      }
    }
    if (!options_.log_directory.empty()) {
      absl::StrAppend(&message, "\nlogs are in ", options_.log_directory);
    }
    return message;
  }

  const LocalLaunchOptions& options_;
  const SignalBlock signals_;  // before any thread
  std::unique_ptr<StoreServer> store_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<const RankProcess*> failed_;  // by themselves, as they ended
  int phase_ = kRunning;
  bool stopped_ = false;                      // on request
  absl::Time next_ = absl::InfiniteFuture();  // when the next phase begins
};

}  // namespace

LaunchResult RunLocalRanks(const LocalLaunchOptions& options) {
  return LocalJob(options).Run();
}

}  // namespace shardgraph
