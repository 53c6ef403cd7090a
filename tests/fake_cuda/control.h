// What a test can ask of the CUDA double: its seed, its devices, its counters,
// and what it found wrong. Not part of CUDA.
#ifndef TESTS_FAKE_CUDA_CONTROL_H_
#define TESTS_FAKE_CUDA_CONTROL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace shardgraph::fake_cuda {

struct Options {
  // Decides every choice the double makes: which stream goes on, how much work
  // is done before the host looks, the order of blocks, warps and lanes. Seed 0
  // is the plain order: streams round robin, blocks and lanes ascending.
  uint64_t seed = 0;
  int devices = 1;
  // Kernels compiled for it are watched access by access (see checker.h). Takes
  // 12 bytes for each byte of device memory touched.
  bool check_accesses = true;
  // Device memory is inaccessible while host code runs, so that the host's
  // mistakes fault. Costs two mprotect calls per operation and allocation.
  bool protect_device_memory = false;
  // Red zones of all allocations are checked after every operation, so that
  // the report names the kernel; otherwise only when memory is freed.
  bool check_red_zones = true;
  // Fills the `__shared__` variables and the dynamic shared memory with 0xff
  // (a NaN) before each block.
  bool poison_shared_memory = true;
  // Where it says so, cudaStreamBeginCapture fails; null: nowhere.
  std::function<bool(int device)> refuses_capture;
  // Every rank must call the collectives of different communicators in the same
  // order, as far as ranks share them: NCCL keeps the host's order, and another
  // one can end in a deadlock.
  bool check_communicator_order = false;
  // How long a waiting host gives the other ranks' threads to enqueue their
  // part of a collective before it reports who is missing.
  std::chrono::milliseconds collective_timeout{5000};
};

// A new world: nothing allocated, no stream, the error state clear. Handles
// and pointers of the old world are void. Counts as a finding (see TakeReport)
// what the old world still held: allocations, streams, events, graphs.
void Reset(const Options& options);

struct Counters {
  int64_t allocations = 0;  // cudaMalloc and cudaMallocHost
  int64_t kernels = 0;      // kernels executed, replayed ones included
  int64_t threads = 0;      // GPU threads executed
  int64_t switches = 0;     // fiber switches
  int64_t graph_launches = 0;
  int64_t synchronizations = 0;  // calls that made the host wait
  int64_t pageable_copies = 0;   // cudaMemcpyAsync from or to pageable memory
};
Counters GetCounters();

// How often each function of CUDA, NCCL and cuBLASLt was called since the last
// Reset.
std::map<std::string, int64_t> GetCalls();

// A product of cuBLASLt's: D [m, n] with sums over k.
struct MatmulCall {
  int64_t m, n, k;
  int epilogue;       // a cublasLtEpilogue_t
  int64_t workspace;  // bytes that the algorithm takes
  bool accumulates;   // beta is not 0
  bool tf32;
};
// Those enqueued since the last Reset, in order.
std::vector<MatmulCall> GetMatmuls();
// From now on, whatever is Reset, cuBLASLt's heuristic supports no product, or
// again all that it does.
void RefuseMatmuls(bool refuses);

// Whether kernels may read [p, p + bytes) of device memory without having
// written it. Fresh memory is unwritten, copies and fills write.
void MarkUnwritten(const void* p, size_t bytes);
void MarkWritten(const void* p, size_t bytes);

// Everything found wrong since the last call: accesses outside memory, damaged
// red zones, barriers that not all threads reach, leaks. Empty if nothing.
std::string TakeReport();

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_CONTROL_H_
