// CPU, memory, limits and network of this machine, from /proc, /sys and probes.

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/cpu/target.h"
#include "tools/doctor/facts.h"

namespace shardgraph::doctor {
namespace {

// The first line of a file of /sys, "" when there is none.
std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The text after "key:" of the first such line, "" when there is none.
std::string ValueAfter(const std::string& path, absl::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) == key) {
      return std::string(absl::StripAsciiWhitespace(parts.second));
    }
  }
  return "";
}

// /proc/meminfo counts in "kB" of 1,024 bytes.
int64_t MemInfoBytes(absl::string_view key) {
  int64_t kib;
  const std::string value = ValueAfter("/proc/meminfo", key);
  if (!absl::SimpleAtoi(absl::StripSuffix(value, " kB"), &kib)) return -1;
  return kib * 1024;
}

int64_t ContainerLimit() {
  int64_t limit;
  for (const char* path : {"/sys/fs/cgroup/memory.max",
                           "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    // Version 1 says "no limit" with a number near 2^63.
    if (absl::SimpleAtoi(FirstLine(path), &limit) &&
        limit < (int64_t{1} << 60)) {
      return limit;
    }
  }
  return -1;
}

int UsableCores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const std::string quota_line = FirstLine("/sys/fs/cgroup/cpu.max");
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(quota_line, ' ');
  int64_t quota;
  int64_t period;
  if (absl::SimpleAtoi(parts.first, &quota) &&
      absl::SimpleAtoi(parts.second, &period) && period > 0) {
    const int64_t allowed = std::max<int64_t>(1, quota / period);
    cores = static_cast<int>(std::min<int64_t>(cores, allowed));
  }
  return cores;
}

// AMX tiles are usable only after the kernel has granted their state.
std::optional<bool> AmxPermission(const std::vector<std::string>& features) {
  if (!absl::c_linear_search(features, "amx_tile")) return std::nullopt;
#if defined(__x86_64__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::string Error(absl::string_view what) {
  return absl::StrCat(what, ": ", std::strerror(errno));
}

// Makes, fills and removes a shared memory segment as ranks of one host do.
std::string ProbeSharedMemory() {
  constexpr size_t kBytes = 1 << 20;
  const std::string name = absl::StrCat("/shardgraph_doctor_", getpid());
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0) return Error("shm_open");
  shm_unlink(name.c_str());
  std::string error;
  // posix_fallocate reserves the pages: writing to a full tmpfs is a SIGBUS.
  if (const int code = posix_fallocate(fd, 0, kBytes); code != 0) {
    errno = code;
    error = Error("reserving 1 MiB");
  } else if (void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                 MAP_SHARED, fd, 0);
             memory == MAP_FAILED) {
    error = Error("mmap");
  } else {
    std::memset(memory, 1, kBytes);
    munmap(memory, kBytes);
  }
  close(fd);
  return error;
}

// Listens on 127.0.0.1 and connects to itself.
std::string ProbeLoopback() {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  std::string error;
  if (server < 0 || client < 0) {
    error = Error("socket");
  } else if (bind(server, generic, size) != 0 || listen(server, 1) != 0 ||
             getsockname(server, generic, &size) != 0) {
    error = Error("listening on 127.0.0.1");
  } else if (connect(client, generic, size) != 0) {
    error = Error("connecting to 127.0.0.1");
  }
  if (server >= 0) close(server);
  if (client >= 0) close(client);
  return error;
}

int64_t SoftLimit(int resource) {
  rlimit limit;
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return -1;
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace

bool CpuFacts::Has(const std::string& feature) const {
  return absl::c_linear_search(features, feature);
}

CpuFacts GatherCpu() {
  CpuFacts cpu;
  cpu.model = ValueAfter("/proc/cpuinfo", "model name");
  cpu.online_cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu.usable_cores = UsableCores();
  cpu.features = absl::StrSplit(ValueAfter("/proc/cpuinfo", "flags"), ' ',
                                absl::SkipEmpty());
  cpu.amx_permission = AmxPermission(cpu.features);
  for (const CpuTarget target : SupportedCpuTargets())
    cpu.targets.push_back(CpuTargetName(target));
  cpu.target = CpuTargetName(BestCpuTarget());
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(
           "/sys/devices/system/node", ignored)) {
    int node;
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "node") &&
        absl::SimpleAtoi(name.substr(4), &node)) {
      ++cpu.numa_nodes;
    }
  }
  return cpu;
}

MemoryFacts GatherMemory() {
  MemoryFacts memory;
  memory.total = MemInfoBytes("MemTotal");
  memory.available = MemInfoBytes("MemAvailable");
  memory.container_limit = ContainerLimit();
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) == 0) {
    memory.shm_size = static_cast<int64_t>(shm.f_blocks * shm.f_frsize);
    memory.shm_available = static_cast<int64_t>(shm.f_bavail * shm.f_frsize);
  }
  memory.shm_error = ProbeSharedMemory();
  return memory;
}

LimitFacts GatherLimits() {
  return {.memlock_bytes = SoftLimit(RLIMIT_MEMLOCK),
          .open_files = SoftLimit(RLIMIT_NOFILE)};
}

NetworkFacts GatherNetwork() {
  NetworkFacts network;
  network.loopback_error = ProbeLoopback();
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET ||
          (i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0) {
        continue;
      }
      char text[INET_ADDRSTRLEN] = "";
      inet_ntop(AF_INET,
                &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr,
                text, sizeof(text));
      network.interfaces.push_back(absl::StrCat(i->ifa_name, " ", text));
    }
    freeifaddrs(list);
  }
  std::error_code ignored;
  network.infiniband =
      std::filesystem::directory_iterator("/sys/class/infiniband", ignored) !=
      std::filesystem::directory_iterator();
  return network;
}

}  // namespace shardgraph::doctor
