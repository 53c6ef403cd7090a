// BatchPrefetcher: a thread that fills batches before they are asked for.
#ifndef FSDP_DATA_PREFETCH_H_
#define FSDP_DATA_PREFETCH_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/data/batches.h"

namespace shardgraph {

class BatchPrefetcher {
 public:
  using Fill =
      std::function<absl::Status(int64_t step, int64_t micro, Batch* batch)>;

  // Batches are asked for in the order (0, 0), (0, 1), ... (0, micro_batches -
  // 1), (1, 0), ..., starting anywhere; up to `depth` are filled ahead, by
  // `fill` on the thread of this object.
  BatchPrefetcher(Fill fill, int64_t micro_batches, int depth);
  ~BatchPrefetcher();
  BatchPrefetcher(const BatchPrefetcher&) = delete;
  BatchPrefetcher& operator=(const BatchPrefetcher&) = delete;

  // What fill(step, micro, batch) gives, its error included; waits until it is
  // there. A batch out of order makes the thread start there anew. The memory
  // of `batch` is taken in exchange: batches after the first allocate nothing.
  absl::Status Next(int64_t step, int64_t micro, Batch* batch);

 private:
  struct Slot {
    absl::Status status;
    Batch batch;
  };

  void Run();

  const Fill fill_;
  const int64_t micro_batches_;
  std::vector<Slot> slots_;  // batch number i in slot i % size

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t wanted_ = 0;  // number of the batch that is asked for next
  int64_t filled_ = 0;  // batches before this number are filled
  bool started_ = false, restart_ = false, end_ = false;

  std::thread thread_;  // last: it uses all of them
};

}  // namespace shardgraph

#endif  // FSDP_DATA_PREFETCH_H_
