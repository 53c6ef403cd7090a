// What `doctor` knows about a machine: plain data, gathered once, then judged
// (diagnose.h) and printed (report.h). Tests make it up.

#ifndef TOOLS_DOCTOR_FACTS_H_
#define TOOLS_DOCTOR_FACTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardgraph::doctor {

struct CpuFacts {
  std::string model;
  int online_cores = 0;
  int usable_cores = 0;                // affinity and container quota applied
  int numa_nodes = 0;                  // 0 when unknown
  std::vector<std::string> features;   // flags of /proc/cpuinfo
  std::optional<bool> amx_permission;  // empty when the CPU has no AMX
  std::vector<std::string> targets;    // kernels that run here
  std::string target;                  // the one of them that is used

  bool Has(const std::string& feature) const;
};

// Bytes; -1 when unknown.
struct MemoryFacts {
  int64_t total = -1;
  int64_t available = -1;
  int64_t container_limit = -1;  // -1 also when there is none
  int64_t shm_size = -1;         // of /dev/shm
  int64_t shm_available = -1;
  std::string shm_error;  // empty when a segment could be made and written
};

// -1 is "unlimited".
struct LimitFacts {
  int64_t memlock_bytes = -1;
  int64_t open_files = -1;
};

struct NetworkFacts {
  std::string loopback_error;           // empty when 127.0.0.1 connects
  std::vector<std::string> interfaces;  // "eth0 10.0.0.2"
  bool infiniband = false;
};

// The launcher whose variables are set; "" is none.
struct LaunchFacts {
  std::string launcher;  // "torchrun", "Slurm", "Open MPI"
  std::vector<std::pair<std::string, std::string>> variables;

  // "" when the variable is not set.
  std::string Get(const std::string& name) const;
};

struct Library {
  std::string name;
  std::string version;  // "" when it was not found
  std::string place;    // "linked", or the file that was loaded
};

struct Gpu {
  std::string name;
  std::string compute_capability;  // "9.0"
  int64_t memory_bytes = 0;
};

// Versions are CUDA's integers: 13000 is 13.0, 0 is none.
struct CudaFacts {
  int built_version = 0;       // toolkit this program was built with
  bool device_files = false;   // /dev/nvidiactl: a driver is loaded
  int driver_version = 0;      // newest CUDA the driver supports
  int runtime_version = 0;     // of the libcudart found
  int device_count_error = 0;  // of cudaGetDeviceCount
  std::string device_count_text;
  std::vector<Gpu> gpus;
  // Ordered pairs of GPUs of which one reaches the other's memory, and those
  // that do it over NVLink.
  int peer_pairs = 0, linked_pairs = 0;
  int nccl_version = 0;            // 22809 is 2.28.9, 0 is none
  std::vector<Library> libraries;  // cudart, cublasLt, cudnn, nccl
};

struct Facts {
  CpuFacts cpu;
  MemoryFacts memory;
  LimitFacts limits;
  NetworkFacts network;
  LaunchFacts launch;
  std::vector<Library> libraries;  // linked into this program
  CudaFacts cuda;
};

// 13000 -> "13.0".
std::string CudaVersion(int version);

// Each never fails: what cannot be found out stays at "unknown".
CpuFacts GatherCpu();
MemoryFacts GatherMemory();
LimitFacts GatherLimits();
NetworkFacts GatherNetwork();
LaunchFacts GatherLaunch();
std::vector<Library> GatherLibraries();
CudaFacts GatherCuda();
Facts GatherFacts();

}  // namespace shardgraph::doctor

#endif  // TOOLS_DOCTOR_FACTS_H_
