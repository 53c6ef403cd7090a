// What a checkpoint costs the training that goes on beside it:
//
//   bazel run //tools/bench:saves [-- --preset=gpt2_124m --saves=8 --steps=8
//       --mb_per_second=250 --folder=DIR]
//
// Trains on two ranks, one thread each, in blocks of steps. Every other one has
// a save at its beginning, which a writer held to a rate finishes within the
// block, or, in turn, a thread that writes as many bytes at this rate and does
// nothing else: what the disk takes from the processors by itself, as that of a
// virtual machine does. Prints the time that a save adds (a block with one less
// the mean of its neighbours, median over the saves), the time of its copy to
// host memory (median), their quotient, and what the bytes alone add.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/checkpoint_saver.h"
#include "fsdp/checkpoint/save_progress.h"
#include "fsdp/config/train_config.h"
#include "fsdp/data/batches.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/train/shard_writer.h"
#include "fsdp/train/trainer.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tools/bench/ranks.h"
#include "tools/presets/presets.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"
#include "tools/recompute/trial.h"
#include "tools/trace/median.h"

namespace shardgraph {
namespace {

using nlohmann::json;

constexpr int kRanks = 2;
constexpr int kWarmUp = 3;

// Writes bytes to a file of a folder, no faster than a rate, and removes it.
absl::Status WriteBytes(int64_t bytes, double bytes_per_second,
                        const std::string& path) {
  constexpr int64_t kPiece = 4 << 20;
  const std::unique_ptr<char, void (*)(void*)> memory(
      static_cast<char*>(std::aligned_alloc(DurableFile::kPage, kPiece)),
      std::free);
  std::memset(memory.get(), 1, kPiece);
  SaveProgress progress(bytes_per_second);
  progress.Begin();
  SG_ASSIGN_OR_RETURN(const auto file,
                      DurableFile::Create(path, DurableFile::Cache::kBypassed));
  while (progress.bytes_written() < bytes) {
    SG_RETURN_IF_ERROR(
        file->Append({memory.get(), static_cast<size_t>(kPiece)}));
    SG_RETURN_IF_ERROR(progress.Wrote(kPiece));
  }
  SG_RETURN_IF_ERROR(file->Commit());
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return absl::OkStatus();
}

absl::StatusOr<json> SavesTask(const json& arguments, Runtime& runtime) {
  SG_ASSIGN_OR_RETURN(
      TrainConfig config,
      LoadConfig(arguments.at("preset").get<std::string>(),
                 {"data.batch_size=2", "data.sequence_length=16",
                  "schedule.warmup_steps=0", "checkpoint.keep_last=1",
                  absl::StrCat("checkpoint.write_mb_per_second=",
                               arguments.at("rate").get<double>())}));
  SG_ASSIGN_OR_RETURN(const auto model, MakeModel(config.model()));
  ResolveTrainConfig(model->max_positions(), runtime.world_size(), &config);
  PlanRequest request;
  request.config = &config;
  request.world_size = runtime.world_size();
  SG_ASSIGN_OR_RETURN(request.target, LoadTargetPreset(""));
  request.workspace = runtime.Workspace(request.target);
  request.evaluate = false;
  SG_ASSIGN_OR_RETURN(const auto plan, MakeTrainingPlan(request));
  ExecutorOptions executor_options;
  executor_options.backend = &runtime.backend();
  executor_options.communicators = runtime.communicators();
  ReportSteps(*plan, &executor_options);
  SG_ASSIGN_OR_RETURN(const auto executor,
                      Executor::Create(plan->plan, executor_options));
  const StepState fresh = FreshState(config);
  SG_RETURN_IF_ERROR(
      executor->WriteBuffer(plan->state, 0, &fresh, sizeof(fresh)));
  SG_RETURN_IF_ERROR(InitializeParameters(*plan, config.run().seed(),
                                          runtime.rank() % plan->groups.shard,
                                          *executor));

  TrainerOptions options;
  options.config = &config;
  options.plan = plan.get();
  options.executor = executor.get();
  options.training = [&](int64_t step, int64_t micro, Batch* batch) {
    MadeUpBatch(config.data(), plan->model->vocab_size(), runtime.rank(), step,
                micro, batch);
    return absl::OkStatus();
  };
  options.rank = runtime.rank();
  options.world_size = runtime.world_size();
  Trainer trainer(options);

  CheckpointSaverOptions saving;
  saving.rank.config = &config;
  saving.rank.plan = plan.get();
  saving.rank.executor = executor.get();
  saving.rank.rank = runtime.rank();
  saving.rank.world_size = runtime.world_size();
  saving.folder = arguments.at("folder");
  saving.store = &runtime.store();
  saving.max = [&runtime](int64_t mine) { return runtime.Max(mine); };
  CheckpointSaver saver(std::move(saving));

  const int64_t blocks = 4 * arguments.at("saves").get<int64_t>() + 1,
                steps = arguments.at("steps");
  for (int64_t step = 0; step < kWarmUp; ++step)
    SG_RETURN_IF_ERROR(trainer.Step(step).status());
  std::vector<double> seconds, copies;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = kWarmUp + block * steps;
    SG_RETURN_IF_ERROR(runtime.Barrier());
    const absl::Time begin = absl::Now();
    std::future<absl::Status> bare;
    if (block % 4 == 1) {
      SG_RETURN_IF_ERROR(saver.Save(first));
      copies.push_back(absl::ToDoubleSeconds(saver.copy_time()));
    } else if (block % 4 == 3) {
      bare = std::async(std::launch::async, WriteBytes, plan->snapshot_bytes,
                        1e6 * arguments.at("rate").get<double>(),
                        absl::StrCat(arguments.at("folder").get<std::string>(),
                                     "/bytes-", runtime.rank()));
    }
    for (int64_t step = first; step < first + steps; ++step)
      SG_RETURN_IF_ERROR(trainer.Step(step).status());
    SG_RETURN_IF_ERROR(runtime.Barrier());
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    // 1: the save was not done within its block, whose time is too short.
    const bool idle = saver.Idle() && (!bare.valid() ||
                                       bare.wait_for(std::chrono::seconds(0)) ==
                                           std::future_status::ready);
    SG_ASSIGN_OR_RETURN(const int64_t busy, runtime.Max(idle ? 0 : 1));
    if (bare.valid()) SG_RETURN_IF_ERROR(bare.get());
    if (busy != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("a save took longer than its block of ", seconds.back(),
                       " s; raise --steps or --mb_per_second"));
    }
  }
  SG_RETURN_IF_ERROR(saver.SaveAndWait(kWarmUp + blocks * steps));
  return json{{"seconds", seconds},
              {"copies", copies},
              {"bytes", plan->snapshot_bytes}};
}

absl::Status Main(const std::vector<std::string>& args) {
  std::string preset = "gpt2_124m", folder;
  int64_t saves = 8, steps = 8;
  double rate = 250;
  std::vector<std::string> none;
  SG_RETURN_IF_ERROR(ParseFlags(
      "saves: what a checkpoint costs the training beside it", args,
      {{"preset", &preset, "of the model; gpt2_124m"},
       {"saves", &saves, "saves that are timed; 8"},
       {"steps", &steps, "of a block; 8"},
       {"mb_per_second", &rate, "that each rank writes at most; 250"},
       {"folder", &folder, "for the checkpoints, removed at the end"}},
      &none));
  const std::string base = folder.empty()
                               ? std::filesystem::temp_directory_path().string()
                               : UserPath(folder);
  const std::string work =
      absl::StrCat(base, "/saves-", absl::ToUnixMicros(absl::Now()));
  const auto result = RunOnRanks("saves",
                                 {{"preset", preset},
                                  {"saves", saves},
                                  {"steps", steps},
                                  {"rate", rate},
                                  {"folder", work}},
                                 kRanks);
  std::error_code error;
  std::filesystem::remove_all(work, error);
  if (!result.ok()) return result.status();
  const std::vector<double> seconds = result->at("seconds");
  std::vector<double> without, added, bare;
  for (size_t i = 0; i < seconds.size(); ++i) {
    std::printf("block %zu %s: %.3f s\n", i,
                i % 2 == 0   ? "without"
                : i % 4 == 1 ? "with a save"
                             : "with as many bytes",
                seconds[i]);
    if (i % 2 == 0) {
      without.push_back(seconds[i]);
      continue;
    }
    (i % 4 == 1 ? added : bare)
        .push_back(seconds[i] - (seconds[i - 1] + seconds[i + 1]) / 2);
  }
  const double add = MedianOf(added), bytes = MedianOf(bare),
               copy = MedianOf(result->at("copies"));
  std::printf(
      "%.1f MB a rank; a save adds %.3f s to %.3f s of %lld steps, its copy "
      "takes %.3f s: %.2f x; the bytes alone add %.3f s, without them %.2f x\n",
      result->at("bytes").get<double>() / 1e6, add, MedianOf(without),
      static_cast<long long>(steps), copy, add / copy, bytes,
      (add - bytes) / copy);
  return absl::OkStatus();
}

}  // namespace
}  // namespace shardgraph

int main(int argc, char** argv) {
  int exit_status = 0;
  if (shardgraph::RunAsRank(argc, argv, {{"saves", shardgraph::SavesTask}},
                            &exit_status))
    return exit_status;
  return shardgraph::Finish(
      "saves", shardgraph::Main(shardgraph::ArgumentsOf(argc, argv)));
}
