// PrepareCudnnAttention on the CUDA double: the reference kernels, enqueued.
#include <memory>
#include <utility>
#include <vector>

#include "kernels/attention/cudnn.h"
#include "kernels/check.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/status_macros.h"
#include "tests/fake_cuda/library.h"

namespace shardgraph {
namespace {

using fake_cuda::LibraryWork;

// The rows of a tensor, which are contiguous.
void AddRows(const Tensor& tensor, std::vector<LibraryWork::Range>* ranges) {
  const TensorType& type = tensor.type;
  const int rank = type.rank();
  const int64_t size = SizeOf(type.dtype);
  const int64_t width = type.dim(rank - 1);
  for (int64_t row = 0; row < type.num_elements() / width; ++row) {
    int64_t offset = 0, rest = row;
    for (int d = rank - 2; d >= 0; --d) {
      offset += rest % type.dim(d) * type.strides[d];
      rest /= type.dim(d);
    }
    ranges->push_back(
        {tensor.as<char>() + offset * size, static_cast<size_t>(width * size)});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareCudnnAttention(
    const KernelContext& context) {
  std::vector<TensorType> operands, results;
  LibraryWork work;
  work.name = "cudnn attention";
  for (const Tensor& tensor : context.operands) {
    operands.push_back(tensor.type);
    AddRows(tensor, &work.reads);
  }
  for (const Tensor& tensor : context.results) {
    results.push_back(tensor.type);
    AddRows(tensor, &work.writes);
  }
  SG_CHECK_OK(CudnnSupports(*context.attributes, operands, results));
  const bool gradient = results.size() == 3;
  const int64_t bytes =
      gradient ? AttentionGradientCudaWorkspace(*context.attributes, operands,
                                                results)
               : AttentionCudaWorkspace(*context.attributes, operands, results);
  SG_CHECK(context.workspace.type.num_elements() >= bytes) << bytes;
  work.writes.push_back({context.workspace.data, static_cast<size_t>(bytes)});

  KernelContext reference = context;
  reference.workspace = Tensor();
  for (const KernelDef& kernel : AttentionReferenceKernels()) {
    if (kernel.op != context.op->name) continue;
    SG_ASSIGN_OR_RETURN(std::unique_ptr<PreparedKernel> made,
                        kernel.prepare(reference));
    work.body = [oracle = std::shared_ptr<PreparedKernel>(std::move(made))] {
      Lane lane;
      SG_CHECK_OK(oracle->Launch(lane));
    };
  }
  return MakeKernel([work = std::move(work)](Lane& lane) {
    return cuda::CudaStatus(
        fake_cuda::EnqueueLibraryWork(work, cuda::StreamOf(lane)),
        "cudnn attention");
  });
}

}  // namespace shardgraph
