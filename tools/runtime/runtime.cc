#include "tools/runtime/runtime.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "graph/workspace.h"
#include "kernels/collective/factory.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/status_macros.h"
#include "tools/presets/presets.h"
#include "tools/runtime/cuda.h"

namespace shardgraph {
namespace {

std::vector<int> Cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) cores.push_back(i);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

// The cores of one of `ranks` ranks of this host; all when there are fewer
// cores than ranks.
CpuSet Share(const std::vector<int>& cores, int rank, int ranks) {
  const int each = static_cast<int>(cores.size()) / ranks;
  if (each == 0) return {};
  return CpuSet(cores.begin() + rank * each, cores.begin() + (rank + 1) * each);
}

// Whether somebody has made one GPU visible, and no other.
bool ShowsOneGpu() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && *visible != '\0' &&
         !absl::StrContains(visible, ",");
}

}  // namespace

absl::StatusOr<DeviceChoice> ChooseDevice(const std::string& device,
                                          int local_ranks) {
  DeviceChoice cpu = {.device = "cpu", .target = MachineTarget()};
  if (device == "cpu") return cpu;
  if (device != "auto" && device != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat(
        "device is \"", device, "\"; it must be auto, cpu or cuda"));
  }
  const absl::StatusOr<std::vector<CudaGpu>> gpus = FindCudaGpus();
  if (!gpus.ok()) {
    if (device == "auto") return cpu;
    return gpus.status();
  }
  const int count = static_cast<int>(gpus->size());
  // Launchers may show each rank its own GPU only.
  if (count < local_ranks && !(count == 1 && ShowsOneGpu())) {
    const std::string few = absl::StrCat(
        "this host has ", local_ranks, " ranks and ", count,
        count == 1 ? " GPU, " : " GPUs, the first ", (*gpus)[0].name);
    if (device == "cuda") {
      return absl::UnavailableError(absl::StrCat(
          few, "; start at most one rank for each GPU (--nproc=", count,
          "), or use --device=cpu"));
    }
    cpu.note = absl::StrCat(few, ": using the CPU. --nproc=", count,
                            " uses the GPU", count == 1 ? "" : "s");
    return cpu;
  }
  DeviceChoice cuda = {.device = "cuda", .name = (*gpus)[0].name};
  for (const char* const target : {"h200", "h100", "a100"}) {
    if (absl::StrContains(absl::AsciiStrToLower(cuda.name), target))
      cuda.target = target;
  }
  if (cuda.target.empty()) {
    cuda.target = (*gpus)[0].major >= 9 ? "h100" : "a100";
    cuda.note = absl::StrCat(
        "there is no target for ", cuda.name, ": planning as for ", cuda.target,
        ", to whose peak mfu refers; --target or run.target names another");
  }
  return cuda;
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(
    const LaunchEnvironment& environment, const RuntimeOptions& options) {
  if (!environment.note.empty())
    std::fprintf(stderr, "note: %s\n", environment.note.c_str());
  std::unique_ptr<Runtime> runtime(new Runtime());
  runtime->environment_ = environment;
  runtime->startup_timeout_ = options.startup_timeout;
  runtime->timeout_ = options.startup_timeout;
  SG_ASSIGN_OR_RETURN(runtime->rendezvous_,
                      Rendezvous::Join(environment, options.startup_timeout));
  if (environment.world_size > 1) {
    SG_ASSIGN_OR_RETURN(runtime->cpu_factory_,
                        runtime->MakeFactory(runtime->rendezvous_->store()));
    std::vector<int> world(environment.world_size);
    std::iota(world.begin(), world.end(), 0);
    SG_ASSIGN_OR_RETURN(
        runtime->control_,
        runtime->cpu_factory_->Create("control", world, kControlChannel));
    runtime->control_pool_ = MakeThreadPool(1);
  }
  SG_RETURN_IF_ERROR(options.device == "cuda" ? runtime->StartCuda(options)
                                              : runtime->StartCpu(options));
  return runtime;
}

absl::StatusOr<std::unique_ptr<CommunicatorFactory>> Runtime::MakeFactory(
    Store& store) const {
  CpuCommunicatorOptions options;
  options.rank = environment_.rank;
  options.size = environment_.world_size;
  options.address = rendezvous_->address();
  options.timeout = startup_timeout_;
  return MakeCpuCommunicatorFactory(store, options);
}

absl::Status Runtime::StartCpu(const RuntimeOptions& options) {
  const int local_ranks = std::max(1, environment_.local_world_size);
  threads_ = options.threads > 0
                 ? options.threads
                 : std::max(1, static_cast<int>(Cores().size()) / local_ranks);
  SG_ASSIGN_OR_RETURN(backend_, MakeBackend(cpu_factory_.get()));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Backend>> Runtime::MakeBackend(
    CommunicatorFactory* factory) const {
  CpuBackendOptions backend;
  backend.kernels = &CpuKernels();
  backend.threads = threads_;
  if (environment_.local_rank >= 0 && environment_.local_world_size > 1) {
    backend.binding =
        Share(Cores(), environment_.local_rank, environment_.local_world_size);
  }
  if (factory != nullptr) {
    backend.allocate = [factory](int64_t bytes) {
      return factory->AllocateWindow(bytes);
    };
  }
  return MakeCpuBackend(std::move(backend));
}

absl::StatusOr<TrialBackend> Runtime::MakeTrialBackend() {
  if (on_gpu()) {
    return absl::FailedPreconditionError(
        "trials are made on CPUs; a rank has one backend on its GPU");
  }
  TrialBackend trial;
  if (world_size() > 1) {
    trial.store = std::make_unique<PrefixStore>(
        rendezvous_->store(), absl::StrCat("trial/", trials_++));
    SG_ASSIGN_OR_RETURN(trial.communicators, MakeFactory(*trial.store));
  }
  SG_ASSIGN_OR_RETURN(trial.backend, MakeBackend(trial.communicators.get()));
  return trial;
}

absl::Status Runtime::StartCuda(const RuntimeOptions& runtime_options) {
  SG_ASSIGN_OR_RETURN(const std::vector<CudaGpu> gpus, FindCudaGpus());
  const int count = static_cast<int>(gpus.size());
  const int local_rank = std::max(0, environment_.local_rank);
  if (count > 1 && local_rank >= count) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank(), " is rank ", local_rank, " of its host, which has ",
        count, " GPUs; start at most one rank for each"));
  }
  CudaRankOptions options;
  options.rank = rank();
  options.size = world_size();
  options.device = count == 1 ? 0 : local_rank;
  options.timeout = startup_timeout_;
  options.graph_files = runtime_options.graph_files;
  if (world_size() > 1)
    SG_RETURN_IF_ERROR(CheckOwnGpu(gpus[options.device].address));
  SG_ASSIGN_OR_RETURN(CudaRank cuda,
                      MakeCudaRank(rendezvous_->store(), options));
  gpu_name_ = gpus[options.device].name;
  gpu_factory_ = std::move(cuda.communicators);
  backend_ = std::move(cuda.backend);
  return absl::OkStatus();
}

absl::Status Runtime::CheckOwnGpu(const std::string& address) {
  // Whoever sets one of these wants to try it (NCCL refuses it otherwise).
  if (std::getenv("NCCL_HOSTID") != nullptr ||
      std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr)
    return absl::OkStatus();
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::string mine = absl::StrCat(host, " ", address);
  std::vector<int> world(world_size());
  std::iota(world.begin(), world.end(), 0);
  SG_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      ExchangeThroughStore(rendezvous_->store(), "gpus", rank(),
                                           world, mine, startup_timeout_));
  for (int other = 0; other < world_size(); ++other) {
    if (other == rank() || all[other] != mine) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks ", std::min(rank(), other), " and ", std::max(rank(), other),
        " are on one GPU, ", address, " of ", host,
        "; start one rank for each GPU, and let CUDA_VISIBLE_DEVICES name "
        "different ones where the launcher sets it for each rank"));
  }
  return absl::OkStatus();
}

WorkspaceFunction Runtime::Workspace(const TargetSpec& target) const {
  // The libraries that a target's budget is for are a GPU's.
  return KernelWorkspace(backend_->kernels(), on_gpu() ? target : TargetSpec());
}

std::string Runtime::DeviceInWords() const {
  if (on_gpu()) return gpu_name_;
  return absl::StrCat(threads_, threads_ == 1 ? " thread" : " threads");
}

Runtime::~Runtime() = default;

absl::Status Runtime::Barrier() {
  if (control_ == nullptr) return absl::OkStatus();
  Lane lane;
  lane.pool = control_pool_.get();
  return control_->Barrier(lane);
}

absl::StatusOr<int64_t> Runtime::Max(int64_t mine) {
  if (control_ == nullptr) return mine;
  Lane lane;
  lane.pool = control_pool_.get();
  SG_RETURN_IF_ERROR(
      control_->AllReduce(&mine, 1, DType::kI64, ReduceOp::kMax, lane));
  return mine;
}

absl::StatusOr<bool> Runtime::Agree(bool mine) {
  SG_ASSIGN_OR_RETURN(const int64_t refused, Max(mine ? 0 : 1));
  return refused == 0;
}

ExecutorOptions Runtime::ForExecutor() {
  ExecutorOptions options;
  options.backend = backend_.get();
  options.communicators = communicators();
  // A graph that is launched is a collective like those in it.
  if (on_gpu() && world_size() > 1)
    options.agree = [this](bool mine) { return Agree(mine); };
  return options;
}

absl::Status Runtime::CheckSame(absl::string_view what,
                                const std::string& text) {
  if (environment_.world_size == 1) return absl::OkStatus();
  std::vector<int> world(environment_.world_size);
  std::iota(world.begin(), world.end(), 0);
  SG_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      ExchangeThroughStore(rendezvous_->store(),
                           absl::StrCat("compare/", comparisons_++),
                           environment_.rank, world, text, startup_timeout_));
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const std::vector<std::string> a = absl::StrSplit(texts[0], '\n'),
                                   b = absl::StrSplit(texts[rank], '\n');
    const size_t line =
        std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()),
                      b.begin())
            .first -
        a.begin();
    return absl::FailedPreconditionError(absl::StrCat(
        "the ranks disagree on ", what, ": line ", line + 1, " is \"",
        line < a.size() ? a[line] : "", "\" on rank 0 and \"",
        line < b.size() ? b[line] : "", "\" on rank ", rank,
        "; start all ranks from the same build with the same config"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Runtime::FromFirstRank(const std::string& bytes) {
  if (environment_.world_size == 1) return bytes;
  const std::string key = absl::StrCat("first_rank/", broadcasts_++);
  if (rank() != 0) return rendezvous_->store().Get(key, timeout_);
  SG_RETURN_IF_ERROR(rendezvous_->store().Set(key, bytes));
  return bytes;
}

absl::StatusOr<std::vector<std::string>> Runtime::Collect(
    const std::string& bytes) {
  Store& store = rendezvous_->store();
  const std::string key = absl::StrCat("collect/", collections_++, "/");
  std::vector<std::string> all;
  if (rank() != 0) {
    SG_RETURN_IF_ERROR(store.Set(absl::StrCat(key, rank()), bytes));
    return all;
  }
  all.push_back(bytes);
  for (int other = 1; other < world_size(); ++other) {
    const std::string theirs = absl::StrCat(key, other);
    SG_ASSIGN_OR_RETURN(std::string got, store.Get(theirs, timeout_));
    SG_RETURN_IF_ERROR(store.Delete(theirs).status());
    all.push_back(std::move(got));
  }
  return all;
}

void Runtime::SetTimeout(absl::Duration timeout) {
  timeout_ = timeout;
  for (const auto& factory : {cpu_factory_.get(), gpu_factory_.get()})
    if (factory != nullptr) factory->SetTimeout(timeout);
}

void Runtime::Abort(const absl::Status& reason) {
  if (control_ != nullptr) control_->Abort(reason);
}

}  // namespace shardgraph
