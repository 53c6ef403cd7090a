// Whether shard.recompute=AUTO chooses well:
//
//   bazel run //tools/bench:recompute [-- --rounds=10 --only=0]
//
// For each of six configs, on two ranks with one thread each, AUTO chooses for
// a budget between what everything and what nothing recomputed takes. Then the
// choice and eight others that fit the budget, none of which the cost model
// had a say in, run step by step in turn, in three sittings. Prints bytes, the
// predicted and the measured seconds of the choice (median of its steps, each
// that of the slower rank) and the others' measured ones, and how the choice
// compares to the best of the others (median over rounds of its step over the
// other's of the same round: a machine's speed changes meanwhile); at the end
// the medians over configs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "fsdp/config/text_config.h"
#include "fsdp/config/train_config.h"
#include "fsdp/shard/recompute_policy.h"
#include "fsdp/train/training_plan.h"
#include "kernels/status_macros.h"
#include "tools/bench/ranks.h"
#include "tools/presets/presets.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"
#include "tools/recompute/choose.h"
#include "tools/recompute/trial.h"
#include "tools/trace/median.h"

namespace shardgraph {
namespace {

using nlohmann::json;

constexpr int kRanks = 2;
constexpr size_t kOthers = 8;
constexpr int kSittings = 3;

struct Case {
  const char* name;
  const char* config;
  double share;  // of what recomputation can save that the budget leaves
};

const std::vector<Case>& Cases() {
  static const std::vector<Case>& cases = *new std::vector<Case>{
      {"gpt2, 6 x 256, 128 tokens, BF16",
       "model { gpt2 { vocab_size: 512 n_positions: 128 n_embd: 256 n_layer: 6 "
       "n_head: 4 } } data { batch_size: 8 micro_batch_size: 4 }",
       0.5},
      {"llama, 8 x 192, 256 tokens, BF16",
       "model { llama { vocab_size: 512 hidden_size: 192 intermediate_size: "
       "512 num_hidden_layers: 8 num_attention_heads: 4 num_key_value_heads: 2 "
       "} } data { batch_size: 4 micro_batch_size: 2 sequence_length: 256 }",
       0.3},
      {"gpt2, 3 x 512, 64 tokens, FP32",
       "model { gpt2 { vocab_size: 512 n_positions: 64 n_embd: 512 n_layer: 3 "
       "n_head: 8 } } data { batch_size: 8 micro_batch_size: 4 } precision { "
       "compute: FP32 }",
       0.6},
      {"llama, 16 x 96, 128 tokens, BF16",
       "model { llama { vocab_size: 512 hidden_size: 96 intermediate_size: 256 "
       "num_hidden_layers: 16 num_attention_heads: 4 } } data { batch_size: 8 "
       "micro_batch_size: 4 sequence_length: 128 }",
       0.2},
      {"llama, 4 x 256, 512 tokens, FP32, two micro-batches",
       "model { llama { vocab_size: 512 hidden_size: 256 intermediate_size: "
       "704 num_hidden_layers: 4 num_attention_heads: 4 } } data { batch_size: "
       "4 micro_batch_size: 1 sequence_length: 512 } precision { compute: FP32 "
       "}",
       0.7},
      {"gpt2, 12 x 128, 256 tokens, BF16, dropout",
       "model { gpt2 { vocab_size: 512 n_positions: 256 n_embd: 128 n_layer: "
       "12 n_head: 4 resid_pdrop: 0.1 } } data { batch_size: 4 "
       "micro_batch_size: 2 }",
       0.4}};
  return cases;
}

// What the others recompute, in their units, in the order in which they are
// tried: ops, or everything.
const std::vector<std::string>& OtherOps() {
  static const std::vector<std::string>& ops =
      *new std::vector<std::string>{"",
                                    "feed_forward",
                                    "norm,pointwise,random",
                                    "attention,embedding",
                                    "feed_forward,norm",
                                    "attention,embedding,norm,pointwise,random",
                                    "feed_forward,norm,pointwise,random",
                                    "feed_forward,attention,embedding",
                                    "norm",
                                    "pointwise,random",
                                    "feed_forward,attention,embedding,norm"};
  return ops;
}

struct Variant {
  std::string what;
  TrainConfig config;
  std::unique_ptr<TrainingPlan> plan;
  std::unique_ptr<Trial> trial;
  std::vector<double> seconds;
};

class Bench {
 public:
  explicit Bench(Runtime& runtime) : runtime_(runtime) {}

  absl::StatusOr<json> Run(const json& arguments) {
    const Case& c = Cases().at(arguments.at("case").get<size_t>());
    SG_RETURN_IF_ERROR(Prepare(c));
    SG_ASSIGN_OR_RETURN(const RecomputeChoice choice,
                        ChooseByTrials(request_, runtime_));
    SG_RETURN_IF_ERROR(Add("the choice", choice, nullptr).status());
    SG_RETURN_IF_ERROR(AddOthers());
    for (int sitting = 0; sitting < kSittings; ++sitting)
      SG_RETURN_IF_ERROR(Sit(sitting, arguments.at("rounds")));
    json all = json::array();
    for (const Variant& variant : variants_) {
      std::vector<double> quotients;
      for (size_t round = 0; round < variant.seconds.size(); ++round)
        quotients.push_back(variants_[0].seconds[round] /
                            variant.seconds[round]);
      all.push_back({{"what", variant.what},
                     {"bytes", variant.plan->plan.memory.arena_bytes},
                     {"quotient", MedianOf(quotients)},
                     {"median", MedianOf(variant.seconds)},
                     {"best", *std::min_element(variant.seconds.begin(),
                                                variant.seconds.end())}});
    }
    return json{{"text", DescribeRecompute(choice)},
                {"budget", choice.budget_bytes()},
                {"predicted", choice.chosen().step_seconds()},
                {"variants", all}};
  }

 private:
  // Some rounds of new trials. Where a trial lies in memory makes a difference
  // of several percent, the first one mostly to its disadvantage: each sitting
  // begins with another.
  absl::Status Sit(int sitting, int64_t rounds) {
    const size_t count = variants_.size();
    const auto number = [&](int64_t i) -> Variant& {
      return variants_[(i + sitting * count / kSittings) % count];
    };
    for (size_t i = 0; i < count; ++i) {
      Variant& variant = number(i);
      SG_ASSIGN_OR_RETURN(
          variant.trial,
          Trial::Create(variant.config, *variant.plan, runtime_, 0));
      SG_RETURN_IF_ERROR(variant.trial->WarmUp());
    }
    for (int64_t round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < count; ++i) {
        Variant& variant = number(i + round);
        SG_ASSIGN_OR_RETURN(variant.seconds.emplace_back(),
                            variant.trial->Step());
      }
    }
    for (Variant& variant : variants_) variant.trial = nullptr;
    return absl::OkStatus();
  }

  absl::Status Prepare(const Case& c) {
    SG_RETURN_IF_ERROR(ParseTextConfig(c.config, c.name, &config_));
    SG_ASSIGN_OR_RETURN(const auto model, MakeModel(config_.model()));
    ResolveTrainConfig(model->max_positions(), kRanks, &config_);
    request_.config = &config_;
    request_.world_size = kRanks;
    SG_ASSIGN_OR_RETURN(request_.target, LoadTargetPreset(""));
    request_.workspace = runtime_.Workspace(request_.target);
    request_.evaluate = false;
    int64_t bytes[2];
    for (const bool full : {false, true}) {
      config_.mutable_shard()->set_recompute(full ? FULL : NONE);
      SG_ASSIGN_OR_RETURN(const auto plan, MakeTrainingPlan(request_));
      bytes[full] = plan->plan.memory.arena_bytes;
      if (full) continue;
      for (const ShardUnit& unit : plan->layout.units()) {
        if (unit.module->block()) blocks_.push_back(unit.name);
      }
    }
    budget_ =
        bytes[1] + static_cast<int64_t>(
                       c.share * static_cast<double>(bytes[0] - bytes[1]));
    config_.mutable_shard()->set_recompute(AUTO);
    config_.mutable_shard()->set_memory_budget_bytes(budget_);
    return ValidateTrainConfig(config_, model->max_positions(), kRanks);
  }

  // Whether it fits and is none of those that are there; then it is one of
  // them. `bytes`, if not null: what it takes.
  absl::StatusOr<bool> Add(const std::string& what,
                           const RecomputeChoice& choice, int64_t* bytes) {
    Variant variant;
    variant.what = what;
    variant.config = config_;
    ApplyRecompute(choice, &variant.config);
    PlanRequest request = request_;
    request.config = &variant.config;
    SG_ASSIGN_OR_RETURN(variant.plan, MakeTrainingPlan(request));
    const StepPlan& plan = variant.plan->plan;
    if (bytes != nullptr) *bytes = plan.memory.arena_bytes;
    if (plan.memory.arena_bytes > budget_) return false;
    for (const Variant& other : variants_) {
      if (other.plan->plan.hash == plan.hash) return false;
    }
    variants_.push_back(std::move(variant));
    return true;
  }

  // `ops` in the blocks from `begin` to `end`.
  void AddBlocks(size_t begin, size_t end, const std::string& ops,
                 RecomputeChoice* choice) const {
    if (begin == end) return;
    RecomputeUnits* units = choice->add_units();
    units->set_pattern(
        UnitPattern(absl::MakeSpan(blocks_).subspan(begin, end - begin)));
    units->set_recompute(ops.empty() ? FULL : SELECTIVE);
    for (absl::string_view op : absl::StrSplit(ops, ',', absl::SkipEmpty()))
      units->add_recompute_ops(std::string(op));
  }

  // In the fewest first blocks that fit, nothing behind them; then everything
  // in the fewest, one of the ops behind them; then everything in all.
  absl::Status AddOthers() {
    for (const bool mixed : {false, true}) {
      for (const std::string& ops : OtherOps()) {
        if (mixed && ops.empty()) continue;
        for (size_t count = 1; count <= blocks_.size(); ++count) {
          if (variants_.size() > kOthers) return absl::OkStatus();
          RecomputeChoice choice;
          AddBlocks(0, count, mixed ? "" : ops, &choice);
          if (mixed) AddBlocks(count, blocks_.size(), ops, &choice);
          int64_t bytes = 0;
          SG_RETURN_IF_ERROR(
              Add(absl::StrCat(mixed || ops.empty() ? "everything" : ops,
                               " in ", count, " blocks",
                               mixed ? absl::StrCat(", ", ops, " behind") : ""),
                  choice, &bytes)
                  .status());
          if (bytes <= budget_) break;
        }
      }
    }
    RecomputeChoice all;
    AddBlocks(0, blocks_.size(), "", &all);
    return Add("everything in all blocks", all, nullptr).status();
  }

  Runtime& runtime_;
  TrainConfig config_;
  PlanRequest request_;
  int64_t budget_ = 0;
  std::vector<std::string> blocks_;
  std::vector<Variant> variants_;  // the choice first
};

absl::StatusOr<json> RecomputeTask(const json& arguments, Runtime& runtime) {
  return Bench(runtime).Run(arguments);
}

absl::Status Main(const std::vector<std::string>& args) {
  int64_t rounds = 10, only = 0;
  std::vector<std::string> none;
  SG_RETURN_IF_ERROR(ParseFlags(
      "recompute: whether shard.recompute=AUTO chooses well", args,
      {{"rounds", &rounds, "steps of each choice in each of 3 sittings; 10"},
       {"only", &only, "one config, 1 to 6; 0: all"}},
      &none));
  std::vector<double> errors, ratios;
  for (size_t i = 0; i < Cases().size(); ++i) {
    if (only != 0 && static_cast<size_t>(only) != i + 1) continue;
    SG_ASSIGN_OR_RETURN(
        const json result,
        RunOnRanks("recompute", {{"case", i}, {"rounds", rounds}}, kRanks));
    const json& variants = result.at("variants");
    const double predicted = result.at("predicted"),
                 measured = variants.at(0).at("median");
    double quotient = 0;
    std::printf("%zu: %s\n%s", i + 1, Cases()[i].name,
                result.at("text").get<std::string>().c_str());
    for (size_t v = 0; v < variants.size(); ++v) {
      const json& variant = variants.at(v);
      const double median = variant.at("median");
      const double over = variant.at("quotient");
      if (v > 0) quotient = std::max(quotient, over);
      std::printf("  %9.2f ms (best %9.2f)  %8.2f MB  %5.3f x  %s\n",
                  1e3 * median, 1e3 * variant.at("best").get<double>(),
                  variant.at("bytes").get<double>() / 1e6, over,
                  variant.at("what").get<std::string>().c_str());
    }
    errors.push_back(std::abs(predicted / measured - 1));
    ratios.push_back(quotient);
    std::printf(
        "  predicted %.2f ms, measured %.2f: off by %.1f %%; %.3f x the best "
        "of %zu others; %s its budget\n",
        1e3 * predicted, 1e3 * measured, 100 * errors.back(), ratios.back(),
        variants.size() - 1,
        variants.at(0).at("bytes") <= result.at("budget") ? "fits"
                                                          : "DOES NOT FIT");
    std::fflush(stdout);
  }
  std::printf(
      "predictions off by %.1f %% in the median; at most %.3f x the best of "
      "the others\n",
      100 * MedianOf(errors), *std::max_element(ratios.begin(), ratios.end()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace shardgraph

int main(int argc, char** argv) {
  int exit_status = 0;
  if (shardgraph::RunAsRank(
          argc, argv, {{"recompute", shardgraph::RecomputeTask}}, &exit_status))
    return exit_status;
  return shardgraph::Finish(
      "recompute", shardgraph::Main(shardgraph::ArgumentsOf(argc, argv)));
}
