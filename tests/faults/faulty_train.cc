// The program `train` with a fault: SHARDGRAPH_FAULT="RANK PLACE COUNT" kills
// that rank, by SIGKILL to itself, when it does PLACE for the COUNT-th time:
//   forward, backward, update   between two kernels of that part of the step
//   gather, reduction           in the middle of the collective, when the ranks
//                               have met and move data
// or lets it go on badly:
//   stall                       a kernel of the forward pass never returns
//   refuse                      one says that its operands are wrong
//   fsync                       the disk does not answer
// Without the variable it is `train`.

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"
#include "kernels/collective/communicator.h"
#include "kernels/status_macros.h"
#include "tools/train/train.h"

namespace shardgraph {
namespace {

struct Fault {
  int rank = -1;
  std::string place;
  int64_t count = 0;
  std::atomic<int64_t> seen{0};
  std::unique_ptr<CommunicatorFactory> communicators;

  bool Strikes() { return seen.fetch_add(1) + 1 == count; }
};

[[noreturn]] void Die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// Dies as soon as somebody wants to work with it.
class DeadlyPool final : public ThreadPool {
 public:
  int num_threads() const override { Die(); }
  void ParallelFor(int64_t, int64_t,
                   absl::FunctionRef<void(int64_t, int64_t)>) override {
    Die();
  }
};

class FaultyCommunicator final : public Communicator {
 public:
  FaultyCommunicator(std::unique_ptr<Communicator> inner, Fault* fault)
      : inner_(std::move(inner)), fault_(fault) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  absl::Status AllGather(const void* shard, void* full, int64_t count,
                         DType dtype, Lane& lane) override {
    return Do("gather", lane, [&](Lane& l) {
      return inner_->AllGather(shard, full, count, dtype, l);
    });
  }
  absl::Status ReduceScatter(const void* full, void* shard, int64_t count,
                             DType dtype, Lane& lane) override {
    return Do("reduction", lane, [&](Lane& l) {
      return inner_->ReduceScatter(full, shard, count, dtype, l);
    });
  }
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                         Lane& lane) override {
    return Do("reduction", lane, [&](Lane& l) {
      return inner_->AllReduce(data, count, dtype, op, l);
    });
  }
  absl::Status AllToAll(const void* send, void* receive, int64_t count,
                        DType dtype, Lane& lane) override {
    return inner_->AllToAll(send, receive, count, dtype, lane);
  }
  absl::Status Broadcast(void* data, int64_t count, DType dtype, int root,
                         Lane& lane) override {
    return inner_->Broadcast(data, count, dtype, root, lane);
  }
  absl::Status Barrier(Lane& lane) override { return inner_->Barrier(lane); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  template <typename Call>
  absl::Status Do(const char* place, Lane& lane, const Call& call) {
    if (fault_->place != place || !fault_->Strikes()) return call(lane);
    DeadlyPool pool;
    Lane deadly = lane;
    deadly.pool = &pool;
    call(deadly).IgnoreError();
    Die();  // nothing was to be moved
  }

  const std::unique_ptr<Communicator> inner_;
  Fault* const fault_;
};

class FaultyFactory final : public CommunicatorFactory {
 public:
  FaultyFactory(CommunicatorFactory* inner, Fault* fault)
      : inner_(inner), fault_(fault) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view group, absl::Span<const int> ranks,
      int channel) override {
    SG_ASSIGN_OR_RETURN(auto communicator,
                        inner_->Create(group, ranks, channel));
    return std::make_unique<FaultyCommunicator>(std::move(communicator),
                                                fault_);
  }
  absl::StatusOr<void*> AllocateWindow(int64_t bytes) override {
    return inner_->AllocateWindow(bytes);
  }
  void SetTimeout(absl::Duration timeout) override {
    inner_->SetTimeout(timeout);
  }

 private:
  CommunicatorFactory* const inner_;
  Fault* const fault_;
};

void PutIn(Fault* fault, const StepPlan& plan, ExecutorOptions* options) {
  const int rank =
      options->communicators == nullptr ? 0 : options->communicators->rank();
  if (rank != fault->rank) return;
  if (fault->place == "gather" || fault->place == "reduction") {
    fault->communicators =
        std::make_unique<FaultyFactory>(options->communicators, fault);
    options->communicators = fault->communicators.get();
    return;
  }
  options->after_node = [fault, graph = &plan.graph](NodeId id) {
    const Node& node = graph->nodes[id];
    const bool stalls = fault->place == "stall",
               refuses = fault->place == "refuse";
    const std::string direction = stalls || refuses ? "forward" : fault->place;
    if (node.lane != LaneKind::kCompute ||
        DirectionName(node.direction) != direction || !fault->Strikes())
      return absl::OkStatus();
    if (refuses) return absl::FailedPreconditionError("wrong operands");
    while (stalls) pause();
    Die();
  };
}

// Of the process; also for fsync.
Fault& TheFault() {
  static Fault fault;
  return fault;
}

int Main(int argc, char** argv) {
  Fault& fault = TheFault();
  const char* text = std::getenv("SHARDGRAPH_FAULT");
  if (text == nullptr) return TrainMain(argc, argv);
  const std::vector<std::string> fields = absl::StrSplit(text, ' ');
  SG_CHECK_EQ(fields.size(), 3u) << text;
  SG_CHECK(absl::SimpleAtoi(fields[0], &fault.rank)) << text;
  fault.place = fields[1];
  SG_CHECK(absl::SimpleAtoi(fields[2], &fault.count)) << text;
  return TrainMain(argc, argv,
                   [](const StepPlan& plan, ExecutorOptions* options) {
                     PutIn(&TheFault(), plan, options);
                   });
}

}  // namespace

bool DiskAnswers() {
  Fault& fault = TheFault();
  const char* rank = std::getenv("RANK");
  return fault.place != "fsync" || rank == nullptr ||
         std::to_string(fault.rank) != rank || !fault.Strikes();
}

}  // namespace shardgraph

// In place of the C library's.
extern "C" int fsync(int file) {
  if (!shardgraph::DiskAnswers()) {
    for (;;) pause();
  }
  return static_cast<int>(syscall(SYS_fsync, file));
}

int main(int argc, char** argv) { return shardgraph::Main(argc, argv); }
