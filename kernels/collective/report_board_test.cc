#include "kernels/collective/report_board.h"

#include <condition_variable>
#include <mutex>
#include <string>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

// Answers no question while it is closed.
class GatedStore final : public Store {
 public:
  explicit GatedStore(Store& store) : store_(store) {}

  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Until somebody is kept waiting.
  void AwaitCaller() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    Pass();
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override {
    Pass();
    return store_.Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override {
    Pass();
    return store_.Add(key, delta);
  }
  absl::Status Wait(absl::Span<const std::string> keys,
                    absl::Duration timeout) override {
    Pass();
    return store_.Wait(keys, timeout);
  }
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override {
    Pass();
    return store_.Check(keys);
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override {
    Pass();
    return store_.Delete(key);
  }

 private:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
  }

  Store& store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};

// Collects what a listener is told.
class Listener {
 public:
  Listener(ReportBoard& board, const std::string& name) {
    board.Subscribe(name, [this](const absl::Status& status) {
      const std::lock_guard<std::mutex> lock(mutex_);
      heard_.push_back(status);
      changed_.notify_all();
    });
  }
  absl::Status Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !heard_.empty(); });
    EXPECT_EQ(heard_.size(), 1u);
    return heard_[0];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<absl::Status> heard_;
};

TEST(ReportBoardTest, AllHearTheFirstReportThatConcernsThem) {
  InProcessStore store;
  ReportBoard mine(store), other(store);
  Listener a(mine, "a"), b(other, "b"), both(other, "a");
  const absl::Status about_a = absl::UnavailableError("rank 1: is lost");
  EXPECT_EQ(mine.Report("a", "a", about_a), about_a);
  EXPECT_EQ(a.Await(), about_a);
  EXPECT_EQ(both.Await(), about_a);
  // Whoever comes later hears the same.
  EXPECT_EQ(other.Report(ReportBoard::kEverybody, "a",
                         absl::UnavailableError("rank 2")),
            about_a);
  EXPECT_EQ(b.Await(), absl::UnavailableError("rank 2"));
  EXPECT_EQ(mine.Find("a", kLong), about_a);
  EXPECT_EQ(mine.Find("b", kLong), absl::UnavailableError("rank 2"));
}

// Communicators come and go while the store keeps the board waiting.
TEST(ReportBoardTest, ListenersDoNotWaitForTheStore) {
  InProcessStore store;
  GatedStore gated(store);
  ReportBoard board(gated);
  gated.Close();
  gated.AwaitCaller();
  bool heard = false;
  board.Subscribe("a", [&](const absl::Status&) { heard = true; });
  board.Unsubscribe("a");
  Listener b(board, "b");
  gated.Open();
  const absl::Status error = absl::AbortedError("enough");
  EXPECT_EQ(board.Report(ReportBoard::kEverybody, "b", error), error);
  EXPECT_EQ(b.Await(), error);
  EXPECT_FALSE(heard);
}

}  // namespace
}  // namespace shardgraph
