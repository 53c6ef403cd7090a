#include "tools/plan/fit.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shardgraph {
namespace {

constexpr int kMaxWorld = 8192;

class Trial {
 public:
  explicit Trial(const PlanRequest& request)
      : request_(request), config_(*request.config) {}

  Trial& Recompute() {
    config_.mutable_shard()->set_recompute(FULL);
    settings_.push_back("shard.recompute=FULL");
    return *this;
  }
  Trial& FullShard() {
    ShardSpec* shard = config_.mutable_shard();
    shard->set_strategy(FULL_SHARD);
    shard->clear_shard_group_size();
    shard->clear_reshard_group_size();
    shard->set_reshard_after_forward(true);
    settings_.push_back(
        "shard.strategy=FULL_SHARD shard.shard_group_size=0 "
        "shard.reshard_after_forward=true shard.reshard_group_size=0");
    return *this;
  }
  Trial& MicroBatch(int64_t size) {
    config_.mutable_data()->set_micro_batch_size(size);
    settings_.push_back(absl::StrCat("data.micro_batch_size=", size));
    return *this;
  }
  Trial& World(int size) {
    request_.world_size = size;
    settings_.push_back(absl::StrCat("--world_size=", size));
    return *this;
  }

  // Whether it fits; then it is added to `fitting`.
  bool Fits(std::vector<FittingSetting>* fitting) {
    request_.config = &config_;
    const absl::StatusOr<std::unique_ptr<TrainingPlan>> plan =
        MakeTrainingPlan(request_);
    if (!plan.ok()) return false;
    const int64_t bytes = (*plan)->plan.memory.arena_bytes;
    if (bytes > request_.target.memory_bytes()) return false;
    fitting->push_back({absl::StrJoin(settings_, " "), bytes});
    return true;
  }

 private:
  PlanRequest request_;
  TrainConfig config_;
  std::vector<std::string> settings_;
};

}  // namespace

std::vector<FittingSetting> SettingsThatFit(const PlanRequest& request) {
  std::vector<FittingSetting> fitting;
  const bool can_recompute = request.config->shard().recompute() != FULL;
  const int64_t micro = request.config->data().micro_batch_size();
  if (request.config->shard().strategy() != FULL_SHARD ||
      request.config->shard().reshard_group_size() != 0)
    Trial(request).FullShard().Fits(&fitting);
  if (can_recompute) Trial(request).Recompute().Fits(&fitting);
  for (int64_t size = micro / 2; size >= 1; size /= 2) {
    if (Trial(request).MicroBatch(size).Fits(&fitting)) break;
  }
  for (int factor : {2, 8, 64}) {
    const int64_t world = int64_t{request.world_size} * factor;
    if (world > kMaxWorld) break;
    if (Trial(request).World(static_cast<int>(world)).Fits(&fitting)) break;
  }
  if (!fitting.empty()) return fitting;

  const auto smallest = [&] {
    Trial trial(request);
    if (can_recompute) trial.Recompute();
    if (micro > 1) trial.MicroBatch(1);
    return trial;
  };
  if (can_recompute && micro > 1 && smallest().Fits(&fitting)) return fitting;
  if (!can_recompute && micro == 1) return fitting;
  for (int factor : {2, 8, 64}) {
    const int64_t world = int64_t{request.world_size} * factor;
    if (world > kMaxWorld) break;
    if (smallest().World(static_cast<int>(world)).Fits(&fitting)) break;
  }
  return fitting;
}

}  // namespace shardgraph
