#include "fsdp/launch/rank_process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace shardgraph {
namespace {

void WriteFully(int fd, const char* data, ssize_t bytes) {
  while (bytes > 0) {
    const ssize_t n = write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // a full disk or a closed terminal stops no training
    data += n;
    bytes -= n;
  }
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

RankProcess::~RankProcess() {
  if (running()) {
    Kill(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {log_, pipes_[0], pipes_[1]}) {
    if (fd >= 0) close(fd);
  }
}

absl::Status RankProcess::Start(const Options& options) {
  rank_ = options.rank;
  if (!options.log_path.empty()) {
    log_ = open(options.log_path.c_str(),
                O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND |
                    (options.append ? 0 : O_TRUNC),
                0644);
    if (log_ < 0) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat("cannot write the log ", options.log_path));
    }
  }
  int ends[2][2] = {{-1, -1}, {-1, -1}};
  int outputs[2] = {log_, log_};
  if (log_ >= 0 && options.pass_on) {
    for (int i = 0; i < 2; ++i) {
      if (pipe2(ends[i], O_CLOEXEC) != 0) {
        return absl::ErrnoToStatus(errno, "pipe");
      }
      fcntl(ends[i][0], F_SETFL, O_NONBLOCK);
      pipes_[i] = ends[i][0];
      outputs[i] = ends[i][1];
    }
  }
  // Where a failed exec tells its errno; closed by a successful one.
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  // All memory is allocated before the fork: other threads may hold the
  // allocator's locks then.
  std::vector<std::string> arguments = options.command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : options.environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(variables);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // it is gone already
    setpgid(0, 0);
    const int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    if (outputs[0] >= 0) dup2(outputs[0], STDOUT_FILENO);
    if (outputs[1] >= 0) dup2(outputs[1], STDERR_FILENO);
    sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr);
    execve(argv[0], argv.data(), envp.data());
    const int error = errno;
    WriteFully(report[1], reinterpret_cast<const char*>(&error), sizeof(error));
    _exit(127);
  }
  const int fork_error = errno;
  close(report[1]);
  for (const auto& end : ends) {
    if (end[1] >= 0) close(end[1]);
  }
  int error = 0;
  ssize_t got = 0;
  if (pid_ > 0) {
    setpgid(pid_, pid_);
    do {
      got = read(report[0], &error, sizeof(error));
    } while (got < 0 && errno == EINTR);
  }
  close(report[0]);
  if (pid_ < 0) return absl::ErrnoToStatus(fork_error, "fork");
  if (got > 0) {
    waitpid(pid_, &wait_status_, 0);
    ended_ = true;
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot run '", options.command[0], "': ", strerror(error)));
  }
  return absl::OkStatus();
}

bool RankProcess::Reap() {
  if (!running()) return false;
  if (waitpid(pid_, &wait_status_, WNOHANG) != pid_) return false;
  ended_ = true;
  PassOn();
  return true;
}

void RankProcess::Kill(int signal) const {
  // The group is there as soon as Start returns; the process may not have made
  // it itself yet.
  if (running() && kill(-pid_, signal) != 0) kill(pid_, signal);
}

void RankProcess::PassOn() {
  char buffer[16384];
  for (int i = 0; i < 2; ++i) {
    while (pipes_[i] >= 0) {
      const ssize_t n = read(pipes_[i], buffer, sizeof(buffer));
      if (n < 0) break;  // nothing more for now
      if (n == 0) {
        close(pipes_[i]);
        pipes_[i] = -1;
        break;
      }
      WriteFully(log_, buffer, n);
      WriteFully(i == 0 ? STDOUT_FILENO : STDERR_FILENO, buffer, n);
    }
  }
}

bool RankProcess::killed_by_signal() const {
  return ended_ && WIFSIGNALED(wait_status_);
}

int RankProcess::exit_code() const {
  return ended_ && WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : -1;
}

std::string RankProcess::Describe() const {
  if (killed_by_signal()) {
    const int signal = WTERMSIG(wait_status_);
    return absl::StrCat("rank ", rank_, " was killed by signal ", signal, " (",
                        strsignal(signal), ")");
  }
  return absl::StrCat("rank ", rank_, " exited with status ", exit_code());
}

std::string LastLines(const std::string& path, int lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  constexpr std::streamoff kMost = 8192;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kMost));
  std::string text(std::min(size, kMost), 0);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t begin = text.size();
  for (int i = 0; i < lines && begin != std::string::npos && begin > 0; ++i) {
    begin = text.rfind('\n', begin - 1);
  }
  return begin == std::string::npos || begin == 0 ? text
                                                  : text.substr(begin + 1);
}

}  // namespace shardgraph
