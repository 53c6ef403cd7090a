#include "kernels/collective/report_board.h"

#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace shardgraph {
namespace {

constexpr std::chrono::milliseconds kInterval(200);
// Between looks of somebody who waits for a report.
constexpr std::chrono::milliseconds kShortInterval(20);

// For keys that are there, or are just being set.
constexpr absl::Duration kAnswer = absl::Seconds(5);

std::string Key(size_t number) { return absl::StrCat("reports/", number); }

}  // namespace

ReportBoard::ReportBoard(Store& store) : store_(store) {
  thread_ = std::thread([this] { Watch(); });
}

ReportBoard::~ReportBoard() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

bool ReportBoard::Refresh() {
  for (;;) {
    size_t number;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      number = reports_.size() + 1;
    }
    const std::string key = Key(number);
    const absl::StatusOr<bool> there =
        store_.Check(absl::MakeConstSpan(&key, 1));
    if (!there.ok()) return false;
    if (!*there) return true;
    const absl::StatusOr<std::string> text = store_.Get(key, kAnswer);
    if (!text.ok()) return false;
    // "target code message"; targets have no spaces.
    const std::vector<std::string> fields =
        absl::StrSplit(*text, absl::MaxSplits(' ', 2));
    int code = 0;
    const bool sound = fields.size() == 3 && absl::SimpleAtoi(fields[1], &code);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (reports_.size() + 1 != number) continue;  // another thread was faster
    if (sound) {
      reports_.push_back(
          {fields[0],
           absl::Status(static_cast<absl::StatusCode>(code), fields[2])});
    } else {
      reports_.push_back({"", absl::InternalError(*text)});
    }
  }
}

absl::Status ReportBoard::First(absl::string_view listener) const {
  for (const Entry& entry : reports_) {
    if (entry.target == kEverybody || entry.target == listener) {
      return entry.error;
    }
  }
  return absl::OkStatus();
}

absl::Status ReportBoard::Report(absl::string_view target,
                                 absl::string_view listener,
                                 const absl::Status& error) {
  const absl::StatusOr<int64_t> number = store_.Add("report_count", 1);
  if (!number.ok()) return error;
  if (!store_
           .Set(Key(*number), absl::StrCat(target, " ", error.raw_code(), " ",
                                           error.message()))
           .ok()) {
    return error;
  }
  int64_t known;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    known = static_cast<int64_t>(reports_.size());
  }
  // Those before it may just be on their way.
  for (int64_t i = known + 1; i < *number; ++i) {
    if (!store_.Get(Key(i), kAnswer).ok()) return error;
  }
  Refresh();
  const std::lock_guard<std::mutex> lock(mutex_);
  const absl::Status first = First(listener);
  return first.ok() ? error : first;
}

absl::Status ReportBoard::Find(absl::string_view listener,
                               absl::Duration grace) {
  const absl::Time deadline = absl::Now() + grace;
  for (;;) {
    const bool reachable = Refresh();
    std::unique_lock<std::mutex> lock(mutex_);
    const absl::Status first = First(listener);
    if (!first.ok() || !reachable || absl::Now() >= deadline) return first;
    stop_changed_.wait_for(lock, kShortInterval);
  }
}

void ReportBoard::Subscribe(
    const std::string& listener,
    std::function<void(const absl::Status&)> on_report) {
  std::lock_guard<std::mutex> lock(mutex_);
  listeners_[listener] = std::move(on_report);
}

void ReportBoard::Unsubscribe(const std::string& listener) {
  std::lock_guard<std::mutex> lock(mutex_);
  listeners_.erase(listener);
}

void ReportBoard::Watch() {
  // A lost store ends the watch: whoever served it is missed elsewhere.
  while (Refresh()) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (auto it = listeners_.begin(); it != listeners_.end();) {
      const absl::Status first = First(it->first);
      if (first.ok()) {
        ++it;
        continue;
      }
      it->second(first);
      it = listeners_.erase(it);
    }
    if (stop_changed_.wait_for(lock, kInterval, [this] { return stop_; }))
      return;
  }
}

}  // namespace shardgraph
