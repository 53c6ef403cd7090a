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
#include "graph/executor.h"
#include "graph/passes.h"
#include "kernels/backend.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/store.h"

namespace shardgraph {

// Where the ranks of this host compute.
struct DeviceChoice {
  std::string device;  // "cpu" or "cuda"
  std::string name;    // of the GPU; empty on a CPU
  std::string target;  // the preset that plans are made for
  std::string note;    // what the user may want to know; may be empty
};

// What `device` ("auto", "cpu" or "cuda") stands for where this host has
// `local_ranks` ranks: auto is CUDA where there is a GPU for each. Unavailable:
// CUDA without a GPU, or with too few; InvalidArgument: another device.
absl::StatusOr<DeviceChoice> ChooseDevice(const std::string& device,
                                          int local_ranks);

struct RuntimeOptions {
  std::string device = "cpu";  // or "cuda": DeviceChoice::device
  int threads = 0;  // compute threads of this rank; 0: the cores of this host
                    // shared by its ranks
  std::string graph_files;  // CudaBackendOptions::graph_files
  // Of each meeting of ranks, until SetTimeout.
  absl::Duration startup_timeout = absl::Seconds(300);
};

// A backend beside the rank's own, for a trial: on the same cores, with as many
// threads and communicators of its own. What it holds is given back with it.
// Members are destroyed from the bottom up.
struct TrialBackend {
  std::unique_ptr<Store> store;
  std::unique_ptr<CommunicatorFactory> communicators;  // null: a world of one
  std::unique_ptr<Backend> backend;
};

// Members are destroyed from the bottom up; executors go before their Runtime.
class Runtime {
 public:
  // Collective: meets the other ranks. FailedPrecondition: two ranks on one
  // GPU.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(
      const LaunchEnvironment& environment, const RuntimeOptions& options);
  ~Runtime();

  int rank() const { return environment_.rank; }
  int world_size() const { return environment_.world_size; }
  // Ranks on this host; all where the launcher does not say.
  int local_world_size() const {
    const int local = environment_.local_world_size;
    return local > 0 ? local : environment_.world_size;
  }
  int threads() const { return threads_; }  // compute threads; 1 with a GPU
  // "2 threads", or the name of the rank's GPU.
  std::string DeviceInWords() const;
  bool on_gpu() const { return !gpu_name_.empty(); }
  // Null in a world of one.
  CommunicatorFactory* communicators() {
    return on_gpu() ? gpu_factory_.get() : cpu_factory_.get();
  }
  Backend& backend() { return *backend_; }
  // For executors on it: backend, communicators, and what ranks agree on.
  ExecutorOptions ForExecutor();
  // Scratch memory of nodes on it, planned for `target`.
  WorkspaceFunction Workspace(const TargetSpec& target) const;

  // Of this job and this restart of it.
  Store& store() { return rendezvous_->store(); }

  // Over the control plane; at once in a world of one.
  absl::Status Barrier();
  // The largest number over all ranks.
  absl::StatusOr<int64_t> Max(int64_t mine);
  // Whether all ranks gave true.
  absl::StatusOr<bool> Agree(bool mine);
  // Compares a text over all ranks. FailedPrecondition names the first rank
  // that differs and its first different line.
  absl::Status CheckSame(absl::string_view what, const std::string& text);
  // Collective, on CPUs only; before the runtime goes.
  absl::StatusOr<TrialBackend> MakeTrialBackend();

  // What rank 0 gives, on every rank.
  absl::StatusOr<std::string> FromFirstRank(const std::string& bytes);
  // Brings what each rank gives to rank 0, by rank; empty on the others.
  absl::StatusOr<std::vector<std::string>> Collect(const std::string& bytes);
  // How long this rank waits for others from now on, in all collectives.
  void SetTimeout(absl::Duration timeout);
  // Tells the other ranks that this one has failed. From any thread.
  void Abort(const absl::Status& reason);

 private:
  Runtime() = default;

  absl::Status StartCpu(const RuntimeOptions& options);
  // With `threads_`; `factory` may be null and outlives it.
  absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(
      CommunicatorFactory* factory) const;
  absl::StatusOr<std::unique_ptr<CommunicatorFactory>> MakeFactory(
      Store& store) const;
  absl::Status StartCuda(const RuntimeOptions& options);
  // Collective: whether each rank has a GPU to itself, this one that of
  // `address`.
  absl::Status CheckOwnGpu(const std::string& address);

  LaunchEnvironment environment_;
  absl::Duration startup_timeout_, timeout_;
  int threads_ = 1;
  int comparisons_ = 0, collections_ = 0, broadcasts_ = 0, trials_ = 0;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::string gpu_name_;
  // Of the control plane, and of the ranks' data on CPUs.
  std::unique_ptr<CommunicatorFactory> cpu_factory_;
  std::unique_ptr<CommunicatorFactory> gpu_factory_;
  std::unique_ptr<ThreadPool> control_pool_;
  std::unique_ptr<Communicator> control_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace shardgraph

#endif  // TOOLS_RUNTIME_RUNTIME_H_
