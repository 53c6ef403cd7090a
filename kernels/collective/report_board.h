// ReportBoard: tells the processes of a job, through its store, that a rank is
// lost or that somebody aborted, so that all name the same cause.
//
// Reports are numbered in the order in which they reach the store; all ranks
// see the same order, and the first one that concerns a communicator is the
// error all its ranks return. A thread looks for new ones several times a
// second.
#ifndef KERNELS_COLLECTIVE_REPORT_BOARD_H_
#define KERNELS_COLLECTIVE_REPORT_BOARD_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/collective/store.h"

namespace shardgraph {

class ReportBoard {
 public:
  // Concerns every communicator.
  static constexpr absl::string_view kEverybody = "*";

  // `store` outlives the board.
  explicit ReportBoard(Store& store);
  ~ReportBoard();

  // Makes `error` known to all who listen to `target`; the first report that
  // concerns `listener`, which may be an earlier one. `error` itself when the
  // store cannot be reached.
  absl::Status Report(absl::string_view target, absl::string_view listener,
                      const absl::Status& error);
  // The first report that concerns `listener`, if it comes within `grace`; else
  // OK.
  absl::Status Find(absl::string_view listener, absl::Duration grace);
  // Calls `on_report` once, with the first report that concerns `listener`,
  // from the board's thread. Not called after Unsubscribe has returned. Neither
  // waits for the store.
  void Subscribe(const std::string& listener,
                 std::function<void(const absl::Status&)> on_report);
  void Unsubscribe(const std::string& listener);

 private:
  struct Entry {
    std::string target;
    absl::Status error;
  };

  // Takes over new reports, without the mutex while it asks the store; false
  // when the store is lost.
  bool Refresh();
  // With the mutex.
  absl::Status First(absl::string_view listener) const;
  void Watch();

  Store& store_;
  std::mutex mutex_;  // of all below; never held while the store is asked
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::vector<Entry> reports_;
  std::map<std::string, std::function<void(const absl::Status&)>> listeners_;
  std::thread thread_;
};

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_REPORT_BOARD_H_
