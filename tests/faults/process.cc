#include "tests/faults/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"

extern char** environ;

namespace shardgraph {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Process::Process(const std::string& path,
                 const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment) {
  std::vector<std::string> argv = {path};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<std::string> envp;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (environment.count(text.substr(0, text.find('='))) == 0)
      envp.push_back(text);
  }
  for (const auto& [name, value] : environment) {
    if (!value.empty()) envp.push_back(absl::StrCat(name, "=", value));
  }
  const std::vector<char*> arguments_of_exec = Pointers(argv);
  const std::vector<char*> environment_of_exec = Pointers(envp);
  int ends[2];
  SG_CHECK_EQ(pipe2(ends, O_CLOEXEC), 0) << "pipe2";
  pid_ = fork();
  SG_CHECK(pid_ >= 0) << "fork";
  if (pid_ == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execve(path.c_str(), arguments_of_exec.data(), environment_of_exec.data());
    _exit(126);
  }
  close(ends[1]);
  fd_ = ends[0];
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (fd_ >= 0) close(fd_);
}

bool Process::ReadMore() {
  char buffer[4096];
  for (;;) {
    const ssize_t n = read(fd_, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    output_.append(buffer, n);
    return true;
  }
}

bool Process::ReadUntil(const std::string& text, int times) {
  for (;;) {
    int found = 0;
    for (size_t at = output_.find(text); at != std::string::npos;
         at = output_.find(text, at + text.size()))
      ++found;
    if (found >= times) return true;
    if (!ReadMore()) return false;
  }
}

int Process::Wait() {
  while (ReadMore()) continue;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

pid_t FindRank(pid_t parent, int rank) {
  std::error_code error;
  const std::string variable = absl::StrCat("RANK=", rank);
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    // "pid (name) state parent ...", and the name may hold anything.
    const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
    const size_t end = stat.rfind(") ");
    if (end == std::string::npos) continue;
    const std::vector<std::string> fields =
        absl::StrSplit(stat.substr(end + 2), ' ');
    pid_t parent_of = 0;
    if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &parent_of) ||
        parent_of != parent)
      continue;
    const std::vector<std::string> variables =
        absl::StrSplit(ReadFile(absl::StrCat("/proc/", pid, "/environ")), '\0');
    if (std::count(variables.begin(), variables.end(), variable) > 0)
      return pid;
  }
  return 0;
}

void AdoptOrphans() { SG_CHECK_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }

bool AnyDescendantLeft() {
  for (;;) {
    const pid_t pid = waitpid(-1, nullptr, WNOHANG);
    if (pid > 0) continue;
    if (pid < 0 && errno == EINTR) continue;
    return pid == 0;
  }
}

std::vector<std::string> ListeningPorts() {
  std::vector<std::string> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const std::vector<std::string> lines =
        absl::StrSplit(ReadFile(table), '\n');
    for (const std::string& line : lines) {
      const std::vector<std::string> fields =
          absl::StrSplit(line, ' ', absl::SkipEmpty());
      constexpr char kListens[] = "0A";
      if (fields.size() > 3 && fields[3] == kListens)
        ports.push_back(fields[1]);
    }
  }
  std::sort(ports.begin(), ports.end());
  return ports;
}

}  // namespace shardgraph
