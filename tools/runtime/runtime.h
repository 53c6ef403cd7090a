// Runtime: what a rank needs to run a plan on this machine: its place in the
// job, communicators, a backend. The one place where programs choose a concrete
// backend.
#ifndef TOOLS_RUNTIME_RUNTIME_H_
#define TOOLS_RUNTIME_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fsdp/launch/environment.h"
#include "fsdp/launch/rendezvous.h"
#include "graph/passes.h"
#include "kernels/backend.h"
#include "kernels/collective/communicator.h"

namespace shardgraph {

struct RuntimeOptions {
  std::string device = "auto";  // auto, cpu, cuda
  int threads = 0;  // compute threads of this rank; 0: the cores of this host
                    // shared by its ranks
  // Of each meeting of ranks, until SetTimeout.
  absl::Duration startup_timeout = absl::Seconds(300);
};

// Members are destroyed from the bottom up; executors go before their Runtime.
class Runtime {
 public:
  // Collective: meets the other ranks. InvalidArgument: a device that is not
  // there.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(
      const LaunchEnvironment& environment, const RuntimeOptions& options);
  ~Runtime();

  int rank() const { return environment_.rank; }
  int world_size() const { return environment_.world_size; }
  int threads() const { return threads_; }
  // Null in a world of one.
  CommunicatorFactory* communicators() { return factory_.get(); }
  Backend& backend() { return *backend_; }

  // Over the control plane; at once in a world of one.
  absl::Status Barrier();
  // The largest number over all ranks.
  absl::StatusOr<int64_t> Max(int64_t mine);
  // Whether all ranks gave true.
  absl::StatusOr<bool> Agree(bool mine);
  // Compares a text over all ranks. FailedPrecondition names the first rank
  // that differs and its first different line.
  absl::Status CheckSame(absl::string_view what, const std::string& text);
  // Brings what each rank gives to rank 0, by rank; empty on the others.
  absl::StatusOr<std::vector<std::string>> Collect(const std::string& bytes);
  // How long this rank waits for others from now on, in all collectives.
  void SetTimeout(absl::Duration timeout);
  // Tells the other ranks that this one has failed. From any thread.
  void Abort(const absl::Status& reason);

 private:
  Runtime() = default;

  LaunchEnvironment environment_;
  absl::Duration startup_timeout_, timeout_;
  int threads_ = 1;
  int comparisons_ = 0, collections_ = 0;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<CommunicatorFactory> factory_;
  std::unique_ptr<ThreadPool> control_pool_;
  std::unique_ptr<Communicator> control_;
  std::unique_ptr<Backend> backend_;
};

// Scratch memory of nodes on the device "cpu".
WorkspaceFunction CpuWorkspace();

}  // namespace shardgraph

#endif  // TOOLS_RUNTIME_RUNTIME_H_
