#include "tools/runtime/runtime.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "graph/workspace.h"
#include "kernels/collective/factory.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/status_macros.h"

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

}  // namespace

WorkspaceFunction CpuWorkspace() { return KernelWorkspace(CpuKernels()); }

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(
    const LaunchEnvironment& environment, const RuntimeOptions& options) {
  if (options.device != "auto" && options.device != "cpu") {
    return absl::InvalidArgumentError(absl::StrCat(
        "run.device is \"", options.device,
        "\", but this build runs on \"cpu\" only; use auto or cpu"));
  }
  if (!environment.note.empty())
    std::fprintf(stderr, "note: %s\n", environment.note.c_str());
  std::unique_ptr<Runtime> runtime(new Runtime());
  runtime->environment_ = environment;
  runtime->startup_timeout_ = options.startup_timeout;
  runtime->timeout_ = options.startup_timeout;
  SG_ASSIGN_OR_RETURN(runtime->rendezvous_,
                      Rendezvous::Join(environment, options.startup_timeout));
  if (environment.world_size > 1) {
    CpuCommunicatorOptions communicator_options;
    communicator_options.rank = environment.rank;
    communicator_options.size = environment.world_size;
    communicator_options.address = runtime->rendezvous_->address();
    communicator_options.timeout = options.startup_timeout;
    SG_ASSIGN_OR_RETURN(runtime->factory_, MakeCpuCommunicatorFactory(
                                               runtime->rendezvous_->store(),
                                               communicator_options));
    std::vector<int> world(environment.world_size);
    std::iota(world.begin(), world.end(), 0);
    SG_ASSIGN_OR_RETURN(
        runtime->control_,
        runtime->factory_->Create("control", world, kControlChannel));
    runtime->control_pool_ = MakeThreadPool(1);
  }

  const std::vector<int> cores = Cores();
  const int local_ranks = std::max(1, environment.local_world_size);
  runtime->threads_ =
      options.threads > 0
          ? options.threads
          : std::max(1, static_cast<int>(cores.size()) / local_ranks);
  CpuBackendOptions backend_options;
  backend_options.kernels = &CpuKernels();
  backend_options.threads = runtime->threads_;
  if (environment.local_rank >= 0 && environment.local_world_size > 1) {
    backend_options.binding = Share(cores, environment.local_rank, local_ranks);
  }
  if (runtime->factory_ != nullptr) {
    backend_options.allocate = [factory =
                                    runtime->factory_.get()](int64_t bytes) {
      return factory->AllocateWindow(bytes);
    };
  }
  SG_ASSIGN_OR_RETURN(runtime->backend_,
                      MakeCpuBackend(std::move(backend_options)));
  return runtime;
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
  if (factory_ != nullptr) factory_->SetTimeout(timeout);
}

void Runtime::Abort(const absl::Status& reason) {
  if (control_ != nullptr) control_->Abort(reason);
}

}  // namespace shardgraph
