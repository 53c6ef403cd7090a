#include "tools/doctor/diagnose.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shardgraph::doctor {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

// Answers of cudaGetDeviceCount.
constexpr int kStubLibrary = 34;
constexpr int kInsufficientDriver = 35;
constexpr int kNoDevice = 100;

void DiagnoseCpu(const CpuFacts& cpu, std::vector<Problem>& problems) {
  if (!cpu.Has("avx2") || !cpu.Has("fma")) {
    problems.push_back({false,
                        "The CPU has no AVX2 with FMA: training is very slow.",
                        "Use a newer machine, or a virtual machine type that "
                        "passes the host's CPU features on."});
  }
  if (cpu.amx_permission.has_value() && !*cpu.amx_permission) {
    problems.push_back(
        {false,
         "The CPU has AMX, but the kernel does not let programs use it: BF16 "
         "products run several times slower.",
         "Use Linux 5.16 or newer, and in a container a seccomp profile that "
         "allows arch_prctl."});
  }
}

void DiagnoseMemory(const MemoryFacts& memory, std::vector<Problem>& problems) {
  constexpr absl::string_view kShmRemedy =
      "Make /dev/shm larger: `mount -o remount,size=8g /dev/shm` as root, or "
      "`docker run --shm-size=8g`.";
  if (!memory.shm_error.empty()) {
    problems.push_back(
        {true,
         absl::StrCat("Shared memory does not work, ranks of one host need "
                      "it: ",
                      memory.shm_error, "."),
         std::string(kShmRemedy)});
  } else if (memory.shm_available >= 0 && memory.shm_available < kGiB) {
    problems.push_back(
        {false,
         absl::StrCat("/dev/shm has only ", memory.shm_available / kMiB,
                      " MiB free; gather and gradient buffers of all ranks of "
                      "this host live there."),
         std::string(kShmRemedy)});
  }
  int64_t usable = memory.available;
  if (memory.container_limit >= 0) {
    usable = usable < 0 ? memory.container_limit
                        : std::min(usable, memory.container_limit);
  }
  if (usable >= 0 && usable < kGiB) {
    problems.push_back(
        {false, absl::StrCat("Only ", usable / kMiB, " MiB of memory is free."),
         "Stop other programs or raise the container's limit; `plan` prints "
         "what a training run needs."});
  }
}

void DiagnoseLimits(const Facts& facts, std::vector<Problem>& problems) {
  const LimitFacts& limits = facts.limits;
  if (limits.open_files >= 0 && limits.open_files < 1024) {
    problems.push_back(
        {false,
         absl::StrCat("At most ", limits.open_files,
                      " open files are allowed; each rank needs a connection "
                      "to each other rank, and files of its own."),
         "`ulimit -n 65536` before starting, or raise nofile in "
         "/etc/security/limits.conf."});
  }
  const bool pins = !facts.cuda.gpus.empty() || facts.network.infiniband;
  if (pins && limits.memlock_bytes >= 0 && limits.memlock_bytes < kGiB) {
    problems.push_back(
        {false,
         absl::StrCat("Only ", limits.memlock_bytes / kMiB,
                      " MiB of memory may be locked; GPUs and InfiniBand "
                      "exchange through locked memory."),
         "`ulimit -l unlimited` before starting, or `docker run --ulimit "
         "memlock=-1`."});
  }
}

// Checks a rank and a size that a launcher set. Only a warning for Slurm and
// MPI: an interactive shell of theirs may hold stray variables.
void DiagnoseRank(const LaunchFacts& launch, const std::string& rank_name,
                  const std::string& size_name,
                  std::vector<Problem>& problems) {
  int64_t rank;
  int64_t size;
  if (absl::SimpleAtoi(launch.Get(rank_name), &rank) &&
      absl::SimpleAtoi(launch.Get(size_name), &size) && rank >= 0 &&
      rank < size) {
    return;
  }
  problems.push_back(
      {launch.launcher == "torchrun",
       absl::StrCat(rank_name, "='", launch.Get(rank_name), "' and ", size_name,
                    "='", launch.Get(size_name),
                    "' do not name a rank: 0 <= rank < size is needed."),
       absl::StrCat("Start through ", launch.launcher, ", or unset ", rank_name,
                    " to run alone.")});
}

void DiagnoseLaunch(const LaunchFacts& launch, std::vector<Problem>& problems) {
  if (launch.launcher == "torchrun") {
    DiagnoseRank(launch, "RANK", "WORLD_SIZE", problems);
    int64_t size;
    if (absl::SimpleAtoi(launch.Get("WORLD_SIZE"), &size) && size > 1) {
      for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
        if (!launch.Get(name).empty()) continue;
        problems.push_back({true,
                            absl::StrCat("WORLD_SIZE is ", size, " but ", name,
                                         " is not set: ranks cannot meet."),
                            absl::StrCat("Set ", name,
                                         " to the host (or port) of rank 0, "
                                         "or start through torchrun.")});
      }
    }
  } else if (launch.launcher == "Slurm") {
    DiagnoseRank(launch, "SLURM_PROCID", "SLURM_NTASKS", problems);
  } else if (launch.launcher == "Open MPI") {
    DiagnoseRank(launch, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                 problems);
  }
}

void DiagnoseNetwork(const NetworkFacts& network,
                     std::vector<Problem>& problems) {
  if (!network.loopback_error.empty()) {
    problems.push_back(
        {true,
         absl::StrCat("Ranks of this host cannot connect: ",
                      network.loopback_error, "."),
         "Bring the loopback interface up: `ip link set lo up` as root."});
  }
}

void DiagnoseCuda(const CudaFacts& cuda, std::vector<Problem>& problems) {
  const bool gpu_here = cuda.device_files || !cuda.gpus.empty();
  if (cuda.built_version == 0) {
    if (gpu_here) {
      problems.push_back(
          {false,
           "There is an NVIDIA driver, but this program was built without "
           "CUDA: it trains on the CPU only.",
           "Install the CUDA toolkit (12 or newer), set CUDA_HOME unless it "
           "is /usr/local/cuda, and build again."});
    }
    return;
  }
  if (cuda.runtime_version != 0 &&
      cuda.runtime_version / 1000 != cuda.built_version / 1000) {
    problems.push_back(
        {false,
         absl::StrCat("Built with CUDA ", CudaVersion(cuda.built_version),
                      ", but the libcudart found here is ",
                      CudaVersion(cuda.runtime_version), "."),
         "Let CUDA_HOME and LD_LIBRARY_PATH name the toolkit of the build, or "
         "build again."});
  }
  for (const Library& library : cuda.libraries) {
    if (!library.version.empty() || !gpu_here) continue;
    problems.push_back(
        {false,
         absl::StrCat("Built with CUDA, but ", library.name,
                      " was not found: training on a GPU cannot start."),
         "Install it beside the toolkit, or add its folder to "
         "LD_LIBRARY_PATH."});
  }
  if (cuda.device_count_error == kStubLibrary) {
    problems.push_back({false, ExplainGpuAnswer(cuda),
                        "Take the folder `stubs` out of LD_LIBRARY_PATH."});
  } else if (cuda.device_count_error == kInsufficientDriver &&
             cuda.driver_version > 0) {
    problems.push_back({false, ExplainGpuAnswer(cuda),
                        absl::StrCat("Update the NVIDIA driver to one for "
                                     "CUDA ",
                                     CudaVersion(cuda.runtime_version),
                                     ", or build with an older toolkit.")});
  } else if (gpu_here && cuda.device_count_error == kInsufficientDriver) {
    problems.push_back(
        {false, "The NVIDIA driver is loaded, but libcuda.so.1 does not load.",
         "In a container start it with `--gpus all` and the NVIDIA container "
         "toolkit; else install the driver's libraries."});
  } else if (gpu_here && cuda.device_count_error == kNoDevice) {
    problems.push_back({false, ExplainGpuAnswer(cuda),
                        "Check CUDA_VISIBLE_DEVICES (empty or -1 hides every "
                        "GPU) and the devices given to the container."});
  } else if (gpu_here && cuda.device_count_error != 0) {
    problems.push_back(
        {false, ExplainGpuAnswer(cuda),
         "Look at `nvidia-smi` and the kernel log; a reset or reboot of the "
         "GPU helps where it fell off the bus."});
  }
}

}  // namespace

std::string ExplainGpuAnswer(const CudaFacts& cuda) {
  if (cuda.runtime_version == 0) return "no CUDA runtime library";
  switch (cuda.device_count_error) {
    case 0:
      return absl::StrCat(cuda.gpus.size(), " GPU(s)");
    case kStubLibrary:
      return "the toolkit's stub libcuda is loaded instead of the driver's";
    case kInsufficientDriver:
      if (cuda.driver_version == 0) return "no NVIDIA driver";
      return absl::StrCat(
          "the driver supports CUDA up to ", CudaVersion(cuda.driver_version),
          ", too old for runtime ", CudaVersion(cuda.runtime_version));
    case kNoDevice:
      return "a driver, but no visible GPU";
    default:
      return absl::StrCat("cudaGetDeviceCount answers ",
                          cuda.device_count_error, " (", cuda.device_count_text,
                          ")");
  }
}

std::string ExplainWindows(const CudaFacts& cuda) {
  constexpr int kWindows = 22700;  // NCCL's versions that have them
  constexpr int kZeroSm = 22800;
  const int gpus = static_cast<int>(cuda.gpus.size());
  if (cuda.nccl_version == 0) return "no NCCL: one GPU only";
  if (gpus < 2) return "with fewer than two GPUs nothing is exchanged";
  const int pairs = gpus * (gpus - 1);
  if (cuda.linked_pairs < pairs) {
    return absl::StrCat(
        "registered windows and zero-SM gathers: no, NVLink connects ",
        cuda.linked_pairs, " of ", pairs, " pairs of GPUs (", cuda.peer_pairs,
        " reach each other's memory)");
  }
  // Zero-SM gathers have hung in versions near 2.28: nobody gets them unasked.
  return absl::StrCat(
      "NVLink connects all GPUs; registered windows: ",
      cuda.nccl_version >= kWindows ? "used, unless NCCL_WIN_ENABLE=0 is set"
                                    : "need NCCL 2.27",
      "; zero-SM gathers: ",
      cuda.nccl_version >= kZeroSm ? "NCCL_CTA_POLICY=2 turns them on"
                                   : "need NCCL 2.28");
}

std::vector<Problem> Diagnose(const Facts& facts) {
  std::vector<Problem> problems;
  DiagnoseCpu(facts.cpu, problems);
  DiagnoseMemory(facts.memory, problems);
  DiagnoseLimits(facts, problems);
  DiagnoseNetwork(facts.network, problems);
  DiagnoseLaunch(facts.launch, problems);
  DiagnoseCuda(facts.cuda, problems);
  std::stable_partition(problems.begin(), problems.end(),
                        [](const Problem& problem) { return problem.fatal; });
  return problems;
}

}  // namespace shardgraph::doctor
