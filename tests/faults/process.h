// Process: a program run as a user runs it, seen from outside: its output, its
// exit status, the processes below it.
#ifndef TESTS_FAULTS_PROCESS_H_
#define TESTS_FAULTS_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace shardgraph {

// One thread. Waits for as long as it takes: the test's own timeout ends what
// hangs.
class Process {
 public:
  // `path`, as relative as the working directory; `environment` is added to
  // ours, an empty value takes a variable away. Standard output and error go
  // into one pipe.
  Process(const std::string& path, const std::vector<std::string>& arguments,
          const std::map<std::string, std::string>& environment = {});
  ~Process();

  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // Reads until the output holds `text` `times` times; false when it ended
  // before.
  bool ReadUntil(const std::string& text, int times = 1);
  // Reads all output and waits. The exit status; 128 + N after signal N.
  int Wait();
  const std::string& output() const { return output_; }

 private:
  bool ReadMore();

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string output_;
};

// Children of a process that were started as rank `rank` of a job; 0 when there
// is none.
pid_t FindRank(pid_t parent, int rank);

// Makes this process the parent of whatever loses its own among those below it,
// so that none can hide.
void AdoptOrphans();
// Whether any process below this one is left; waits for those that end.
bool AnyDescendantLeft();

// Ports that somebody in this network namespace listens at.
std::vector<std::string> ListeningPorts();

}  // namespace shardgraph

#endif  // TESTS_FAULTS_PROCESS_H_
