#include "tools/bench/null_device.h"

#include <vector>

#include "kernels/op_table.h"

namespace shardgraph {
namespace {

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareNothing(
    const KernelContext&) {
  return MakeKernel([](Lane&) {});
}

class NullCommunicator final : public Communicator {
 public:
  explicit NullCommunicator(int size) : size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }
  absl::Status AllGather(const void*, void*, int64_t, DType, Lane&) override {
    return absl::OkStatus();
  }
  absl::Status ReduceScatter(const void*, void*, int64_t, DType,
                             Lane&) override {
    return absl::OkStatus();
  }
  absl::Status AllReduce(void*, int64_t, DType, ReduceOp, Lane&) override {
    return absl::OkStatus();
  }
  absl::Status AllToAll(const void*, void*, int64_t, DType, Lane&) override {
    return absl::OkStatus();
  }
  absl::Status Broadcast(void*, int64_t, DType, int, Lane&) override {
    return absl::OkStatus();
  }
  absl::Status Barrier(Lane&) override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}

 private:
  const int size_;
};

class NullCommunicatorFactory final : public CommunicatorFactory {
 public:
  explicit NullCommunicatorFactory(int size) : size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }
  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view, absl::Span<const int> ranks, int) override {
    return std::make_unique<NullCommunicator>(static_cast<int>(ranks.size()));
  }
  absl::StatusOr<void*> AllocateWindow(int64_t) override { return nullptr; }

 private:
  const int size_;
};

}  // namespace

const KernelTable& NullKernels() {
  static const std::vector<KernelDef>* const kernels = [] {
    auto* all = new std::vector<KernelDef>();
    for (const OpDef* op : AllOps()) {
      KernelDef kernel;
      kernel.op = op->name;
      kernel.prepare = PrepareNothing;
      all->push_back(kernel);
    }
    return all;
  }();
  static const KernelTable* const table = new KernelTable({*kernels});
  return *table;
}

std::unique_ptr<CommunicatorFactory> MakeNullCommunicators(int world_size) {
  return std::make_unique<NullCommunicatorFactory>(world_size);
}

}  // namespace shardgraph
