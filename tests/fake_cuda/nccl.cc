// NCCL on the double: the calls we make, between ranks that are threads of one
// process. A collective is an operation of each rank's stream that ends when
// all ranks have arrived in it; then the data is moved once, sums in FP32 and
// in the order of ranks. What ranks call must match, call by call: otherwise
// the report shows both. So must windows: all ranks register them in the same
// order and size, and what collectives move lies at the same place of them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/nccl_windows.h"
#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/world.h"

namespace shardgraph::fake_cuda {
namespace {

struct Call {
  enum Kind {
    kAllGather,
    kReduceScatter,
    kAllReduce,
    kBroadcast,
    kAllToAll
  } kind;
  const void* send;
  void* receive;
  size_t count;  // As the caller gave it.
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
};

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

std::string Words(const Call& call) {
  const char* const names[] = {"all-gather", "reduce-scatter", "all-reduce",
                               "broadcast", "all-to-all"};
  return std::string(names[call.kind]) + " of " + std::to_string(call.count) +
         " elements of type " + std::to_string(call.type) +
         (call.kind == Call::kBroadcast ? " from " + std::to_string(call.root)
                                        : "");
}

// All ranks' view of a communicator, under the world's lock.
struct Group {
  std::string id;
  std::vector<int> devices;  // By rank.
  // Of calls that not all ranks have made yet: what the first rank's device had
  // called before.
  struct First {
    int device;
    std::map<std::string, size_t> called;
    int callers = 0;
  };
  std::map<size_t, First> firsts;
  std::vector<size_t> calls;  // Per rank.
  int ranks = 0;
  int joined = 0;            // Under the registry's lock.
  std::vector<size_t> next;  // Per rank: its next collective.
  struct Round {
    std::shared_ptr<Meeting> meeting;
    std::vector<Call> calls;
    std::vector<bool> here;
  };
  std::map<size_t, Round> rounds;  // Those still going on.
  WindowCounts windows;
};

// Elements [first, first + count) of all ranks' inputs of type T, combined in
// the order of ranks, in the arithmetic of A.
template <typename T, typename A>
void Combine(const std::vector<std::vector<char>>& inputs, size_t first,
             ncclRedOp_t op, void* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const auto load = [&](size_t r) {
      return static_cast<A>(
          reinterpret_cast<const T*>(inputs[r].data())[first + i]);
    };
    A total = load(0);
    for (size_t r = 1; r < inputs.size(); ++r) {
      const A v = load(r);
      total = op == ncclMax    ? std::max(total, v)
              : op == ncclMin  ? std::min(total, v)
              : op == ncclProd ? total * v
                               : total + v;
    }
    if (op == ncclAvg) total = total / static_cast<A>(inputs.size());
    static_cast<T*>(out)[i] = static_cast<T>(total);
  }
}

void Combine(const std::vector<std::vector<char>>& inputs, size_t first,
             const Call& call, void* out) {
  switch (call.type) {
    case ncclFloat32:
      return Combine<float, float>(inputs, first, call.op, out, call.count);
    case ncclBfloat16:
      return Combine<__nv_bfloat16, float>(inputs, first, call.op, out,
                                           call.count);
    case ncclFloat16:
      return Combine<__half, float>(inputs, first, call.op, out, call.count);
    case ncclFloat64:
      return Combine<double, double>(inputs, first, call.op, out, call.count);
    case ncclInt32:
      return Combine<int32_t, int32_t>(inputs, first, call.op, out, call.count);
    case ncclInt64:
      return Combine<int64_t, int64_t>(inputs, first, call.op, out, call.count);
    default:
      fprintf(stderr, "fake_cuda: reductions of NCCL type %d are missing\n",
              static_cast<int>(call.type));
      abort();
  }
}

// Of what a rank gives and gets, how many times the count.
size_t PiecesSent(const Call& call, size_t ranks) {
  return call.kind == Call::kReduceScatter || call.kind == Call::kAllToAll
             ? ranks
             : 1;
}
size_t PiecesReceived(const Call& call, size_t ranks) {
  return call.kind == Call::kAllGather || call.kind == Call::kAllToAll ? ranks
                                                                       : 1;
}

// Moves the data of all ranks. What they called must agree.
std::string Exchange(const std::vector<Call>& calls) {
  const size_t ranks = calls.size();
  for (size_t r = 1; r < ranks; ++r) {
    if (Words(calls[r]) != Words(calls[0])) {
      return "ranks disagree: rank 0 calls " + Words(calls[0]) + ", rank " +
             std::to_string(r) + " calls " + Words(calls[r]);
    }
  }
  const Call& call = calls[0];
  const size_t size = SizeOf(call.type);
  // Copies first, since a rank's output may be another's input (in place).
  std::vector<std::vector<char>> inputs;
  for (const Call& c : calls) {
    const size_t n = PiecesSent(c, ranks) * c.count;
    const auto* begin = static_cast<const char*>(c.send);
    inputs.emplace_back(begin, begin + n * size);
  }
  for (size_t r = 0; r < ranks; ++r) {
    auto* out = static_cast<char*>(calls[r].receive);
    switch (call.kind) {
      case Call::kAllGather:
        for (size_t s = 0; s < ranks; ++s) {
          memcpy(out + s * call.count * size, inputs[s].data(),
                 call.count * size);
        }
        break;
      case Call::kBroadcast:
        memcpy(out, inputs[static_cast<size_t>(call.root)].data(),
               call.count * size);
        break;
      case Call::kAllToAll:
        for (size_t s = 0; s < ranks; ++s) {
          memcpy(out + s * call.count * size,
                 inputs[s].data() + r * call.count * size, call.count * size);
        }
        break;
      case Call::kAllReduce:
        Combine(inputs, 0, call, out);
        break;
      case Call::kReduceScatter:
        Combine(inputs, r * call.count, call, out);
        break;
    }
  }
  return "";
}

// Symmetric memory is symmetric: empty if what ranks reach into on each other's
// devices lies at the same place of all.
std::string CheckPlaces(const Group& group, const std::vector<Call>& calls) {
  for (const bool send : {true, false}) {
    if (calls[0].kind == (send ? Call::kAllGather : Call::kReduceScatter))
      continue;  // a rank's own piece
    const auto place = [&](size_t r) {
      return PlaceInWindow(group.windows, static_cast<int>(r),
                           send ? calls[r].send : calls[r].receive);
    };
    for (size_t r = 1; r < calls.size(); ++r) {
      if (place(r) == place(0)) continue;
      return "windows are not symmetric: the " + Words(calls[0]) +
             (send ? " sends" : " receives") + " at " + place(0) +
             " on rank 0, at " + place(r) + " on rank " + std::to_string(r);
    }
  }
  return "";
}

std::shared_ptr<Meeting> Arrive(Group& group, int rank, const Call& call) {
  const size_t number = group.next[static_cast<size_t>(rank)]++;
  Group::Round& round = group.rounds[number];
  if (round.meeting == nullptr) {
    round.meeting = std::make_shared<Meeting>();
    round.meeting->name = Words(call);
    round.meeting->expected = group.ranks;
    round.calls.resize(static_cast<size_t>(group.ranks));
  }
  round.calls[static_cast<size_t>(rank)] = call;
  std::shared_ptr<Meeting> meeting = round.meeting;
  if (++meeting->arrived == group.ranks) {
    const std::string places = CheckPlaces(group, round.calls);
    if (!places.empty()) World::Get().Report(places);
    meeting->exchange = [calls = std::move(round.calls)] {
      return Exchange(calls);
    };
    group.rounds.erase(number);
  }
  return meeting;
}

// What each device has called, by communicator; under the world's lock.
struct CallOrder {
  int generation = 0;
  std::map<int, std::map<std::string, size_t>> called;
  std::map<std::string, std::vector<int>> devices;  // By communicator.
};

// Notes a call and compares what came before it with what came before the same
// call on the first rank. Empty if they agree.
std::string CheckOrder(Group& group, int rank, const Call& call) {
  static auto& order = *new CallOrder;
  if (order.generation != World::Get().generation) {
    order = {.generation = World::Get().generation};
  }
  order.devices[group.id] = group.devices;
  const int device = group.devices[static_cast<size_t>(rank)];
  auto& called = order.called[device];
  const size_t number = group.calls[static_cast<size_t>(rank)]++;
  const auto [it, is_first] =
      group.firsts.try_emplace(number, Group::First{device, called});
  Group::First& first = it->second;
  std::string problem;
  for (const auto& [id, members] : order.devices) {
    const auto member = [&members = members](int d) {
      return std::find(members.begin(), members.end(), d) != members.end();
    };
    if (is_first || !problem.empty() || !member(device) ||
        !member(first.device)) {
      continue;
    }
    if (called[id] != first.called[id]) {
      problem = "order of communicators: before its " + Words(call) + " on " +
                group.id + ", device " + std::to_string(first.device) +
                " has made " + std::to_string(first.called[id]) + " calls on " +
                id + ", device " + std::to_string(device) + " has made " +
                std::to_string(called[id]);
    }
  }
  ++called[group.id];
  if (++first.callers == group.ranks) group.firsts.erase(it);
  return problem;
}

// Communicators by unique id, while ranks come together.
std::mutex registry_mutex;
std::condition_variable registry_changed;
std::map<std::string, std::shared_ptr<Group>> registry;
int next_id = 0;

}  // namespace
}  // namespace shardgraph::fake_cuda

struct ncclComm {
  std::shared_ptr<::shardgraph::fake_cuda::Group> group;
  int rank;
  int device;
  std::shared_ptr<::shardgraph::fake_cuda::CommunicatorState> state;
  bool blocking;
  // Of one that does not block: what goes on, and how often the host will be
  // told that it does. A first collective connects; others are enqueued at
  // once.
  bool connected = false;
  int polls = 0;
  std::function<ncclResult_t()> pending = nullptr;
};

namespace shardgraph::fake_cuda {
namespace {

// Whether all ranks of the communicator have come.
bool AllHere(const ncclComm& comm) {
  const std::lock_guard<std::mutex> lock(registry_mutex);
  return comm.group->joined == comm.group->ranks;
}

// Whether anything but a question and an abort may be called on it now.
bool CheckReady(const ncclComm& comm, const char* function) {
  if (comm.polls == 0 && comm.pending == nullptr && AllHere(comm)) return true;
  World::Get().Report(std::string(function) +
                      " while another call goes on on the communicator: "
                      "ncclCommGetAsyncError says when that has ended");
  return false;
}

// How often the host is told to ask again.
constexpr int kPolls = 3;

ncclResult_t EnqueueNow(const Call& call, ncclComm_t comm,
                        cudaStream_t handle) {
  World& world = World::Get();
  cudaStream_t stream = world.Find(handle, t_device);
  if (stream == nullptr || stream->device != comm->device) {
    return ncclInvalidArgument;
  }
  if (call.count == 0) return ncclSuccess;
  if (world.options().check_communicator_order) {
    const std::string problem = CheckOrder(*comm->group, comm->rank, call);
    if (!problem.empty()) world.Report(problem);
  }
  auto work = std::make_shared<Work>();
  work->name = Words(call) + " on rank " + std::to_string(comm->rank);
  const size_t bytes = call.count * SizeOf(call.type);
  const auto ranks = static_cast<size_t>(comm->group->ranks);
  work->reads = {{call.send, bytes * PiecesSent(call, ranks)}};
  work->writes = {{call.receive, bytes * PiecesReceived(call, ranks)}};
  work->arrive = [group = comm->group, rank = comm->rank, call] {
    return Arrive(*group, rank, call);
  };
  work->communicator = comm->state;
  return Return(world.Enqueue(stream, work)) == cudaSuccess
             ? ncclSuccess
             : ncclUnhandledCudaError;
}

ncclResult_t Enqueue(const Call& call, ncclComm_t comm, cudaStream_t stream,
                     const char* function = __builtin_FUNCTION()) {
  ScopedLock lock(function);
  if (!CheckReady(*comm, function)) return ncclInvalidUsage;
  if (comm->blocking || comm->connected) return EnqueueNow(call, comm, stream);
  comm->connected = true;
  comm->polls = kPolls;
  comm->pending = [=] { return EnqueueNow(call, comm, stream); };
  return ncclInProgress;
}

// As far as calls must not be made while a captured graph lives.
void Close(ncclComm_t comm, const char* function) {
  if (World::Get().InAGraph(comm->state.get())) {
    World::Get().Report(std::string(function) +
                        " while a captured graph holds collectives of the "
                        "communicator: NCCL would wait forever");
  }
}

void Forget(ncclComm_t comm) {
  ForgetWindows(comm);
  delete comm;
}

thread_local int t_group_depth = 0;
thread_local std::set<int> t_aborted_in_group;  // Devices.

// NCCL frees memory when it aborts, which waits for what is on the device.
void CheckAborted(int device) {
  const std::string pending = World::Get().PendingCollective(device);
  if (!pending.empty()) {
    World::Get().Report("ncclCommAbort while " + pending +
                        " of another communicator is on the device: NCCL would "
                        "wait for it; abort both in one group");
  }
}

}  // namespace
}  // namespace shardgraph::fake_cuda

using namespace shardgraph::fake_cuda;  // NOLINT: the definitions below are the
                                        // global API.

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard<std::mutex> lock(registry_mutex);
  memset(id, 0, sizeof(*id));
  const std::string text = "double-" + std::to_string(next_id++);
  memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id,
                              int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  return ncclCommInitRankConfig(comm, ranks, id, rank, &config);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks,
                                    ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  { ScopedLock counted; }
  std::unique_lock<std::mutex> lock(registry_mutex);
  std::shared_ptr<Group>& entry = registry[id.internal];
  if (entry == nullptr) {
    entry = std::make_shared<Group>();
    entry->ranks = ranks;
    entry->next.resize(static_cast<size_t>(ranks));
    entry->id = id.internal;
    entry->devices.resize(static_cast<size_t>(ranks));
    entry->calls.resize(static_cast<size_t>(ranks));
    entry->windows.registered.resize(static_cast<size_t>(ranks));
  }
  const std::shared_ptr<Group> group = entry;
  group->devices[static_cast<size_t>(rank)] = t_device;
  if (++group->joined == ranks) {
    registry.erase(id.internal);
    registry_changed.notify_all();
  }
  const bool blocking = config->blocking != 0;
  if (blocking && !registry_changed.wait_for(
                      lock, World::Get().options().collective_timeout,
                      [&] { return group->joined == ranks; })) {
    return ncclSystemError;
  }
  *comm = new ncclComm{group, rank, t_device,
                       std::make_shared<CommunicatorState>(), blocking};
  return blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  ScopedLock lock;
  if (!CheckReady(*comm, "ncclCommFinalize")) return ncclInvalidUsage;
  Close(comm, "ncclCommFinalize");
  CheckNoWindow("ncclCommFinalize", comm, nullptr);
  if (comm->blocking) return ncclSuccess;
  comm->polls = kPolls;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  ScopedLock lock;
  if (!CheckReady(*comm, "ncclCommDestroy")) return ncclInvalidUsage;
  Close(comm, "ncclCommDestroy");
  Forget(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  ScopedLock lock;
  Close(comm, "ncclCommAbort");
  comm->state->aborted = true;
  const int device = comm->device;
  Forget(comm);
  if (t_group_depth > 0) {
    t_aborted_in_group.insert(device);
  } else {
    CheckAborted(device);
  }
  return ncclSuccess;
}
// Of groups only this is modelled: what is aborted in one, is aborted at once.
ncclResult_t ncclGroupStart() {
  ScopedLock lock;
  ++t_group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  ScopedLock lock;
  if (t_group_depth == 0) return ncclInvalidUsage;
  if (--t_group_depth > 0) return ncclSuccess;
  for (const int device : t_aborted_in_group) CheckAborted(device);
  t_aborted_in_group.clear();
  return ncclSuccess;
}
// What goes on goes on in here.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  ScopedLock lock;
  *state = ncclSuccess;
  if (World::Get().sticky() != cudaSuccess) {
    *state = ncclUnhandledCudaError;
  } else if (!AllHere(*comm) ||
             !comm->group->windows.AllHaveAsManyAs(comm->rank) ||
             (comm->polls > 0 && --comm->polls > 0)) {
    *state = ncclInProgress;
  } else if (comm->pending != nullptr) {
    *state = std::exchange(comm->pending, nullptr)();
  }
  return ncclSuccess;
}
// Its handle is there at once; the call ends when all ranks have made theirs,
// for a blocking communicator, at once.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, size_t bytes,
                                    ncclWindow_t* window, int flags) {
  ScopedLock lock;
  if (!CheckReady(*comm, "ncclCommWindowRegister") ||
      World::Get().CheckUnsafe() != cudaSuccess) {
    return ncclInvalidUsage;
  }
  if (reinterpret_cast<uintptr_t>(data) % 4096 != 0) return ncclInvalidArgument;
  *window =
      AddWindow(&comm->group->windows, comm, comm->rank, data, bytes, flags);
  if (comm->blocking) return ncclSuccess;
  comm->polls = kPolls;
  return ncclInProgress;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  ScopedLock lock;
  if (!CheckReady(*comm, "ncclCommWindowDeregister")) return ncclInvalidUsage;
  Close(comm, "ncclCommWindowDeregister");
  return RemoveWindow(comm, window) ? ncclSuccess : ncclInvalidArgument;
}
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  return cudaMalloc(pointer, (bytes + 4095) / 4096 * 4096) == cudaSuccess
             ? ncclSuccess
             : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* pointer) {
  {
    ScopedLock lock;
    CheckNoWindow("ncclMemFree", nullptr, pointer);
  }
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess
                                          : ncclUnhandledCudaError;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->group->ranks;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "error of the NCCL double";
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return Enqueue({Call::kAllGather, send, receive, count, type, ncclSum, 0},
                 comm, stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                               ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return Enqueue({Call::kReduceScatter, send, receive, count, type, op, 0},
                 comm, stream);
}
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return Enqueue({Call::kAllReduce, send, receive, count, type, op, 0}, comm,
                 stream);
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return Enqueue({Call::kBroadcast, send, receive, count, type, ncclSum, root},
                 comm, stream);
}
ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count,
                          ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return Enqueue({Call::kAllToAll, send, receive, count, type, ncclSum, 0},
                 comm, stream);
}

}  // extern "C"
