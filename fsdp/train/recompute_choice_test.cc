#include "fsdp/train/recompute_choice.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/config/text_config.h"
#include "fsdp/config/train_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/op.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using ::testing::HasSubstr;

constexpr char kGpt2[] =
    "model { gpt2 { vocab_size: 31 n_positions: 16 n_embd: 24 n_layer: 3 "
    "n_head: 2 } }";
constexpr char kLlama[] =
    "model { llama { vocab_size: 31 hidden_size: 24 intermediate_size: 40 "
    "num_hidden_layers: 3 num_attention_heads: 4 num_key_value_heads: 2 "
    "max_position_embeddings: 16 } }";

// A plan's request with what it refers to.
struct Request {
  explicit Request(const std::string& text, int world = 1) {
    SG_CHECK_OK(ParseTextConfig(
        absl::StrCat(text,
                     " data { batch_size: 4 sequence_length: 16 "
                     "micro_batch_size: 2 } run { steps: 1 }"),
        "test", &config));
    ResolveTrainConfig(16, world, &config);
    plan.config = &config;
    plan.world_size = world;
    plan.target.set_name("test");
    plan.target.set_lanes(2);
    plan.target.set_buffer_alignment(64);
    plan.target.set_window_alignment(64);
    plan.verify = false;
  }
  Request(const Request&) = delete;

  void Auto(int64_t budget) {
    ApplyRecompute(RecomputeChoice(), &config);
    config.mutable_shard()->set_recompute(AUTO);
    config.mutable_shard()->set_memory_budget_bytes(budget);
  }

  TrainConfig config;
  PlanRequest plan;
};

// A fixed cost model: FLOPs and bytes of all nodes of a micro-batch.
absl::StatusOr<double> Seconds(const TrainingPlan& plan) {
  const Graph& graph = plan.plan.graph;
  double sum = 0;
  for (NodeId id : graph.phases[graph.FindPhase("micro")].nodes) {
    const Node& node = graph.nodes[id];
    const OpCost cost =
        CostOf(*node.op, node.attributes, graph.OperandTypes(node),
               graph.ResultTypes(node));
    sum += 1e-9 * (cost.matmul_flops + cost.pointwise_flops) +
           2e-9 * static_cast<double>(cost.bytes) + 1e-7;
  }
  return sum;
}

absl::StatusOr<RecomputeChoice> Choose(Request& request, int64_t budget) {
  request.Auto(budget);
  return ChooseRecompute(request.plan, Seconds, "the test");
}

// Of the config as it stands.
std::pair<int64_t, double> FiguresOf(const Request& request) {
  const auto plan = MakeTrainingPlan(request.plan);
  SG_CHECK_OK(plan);
  return {(*plan)->plan.memory.arena_bytes, *Seconds(**plan)};
}

std::pair<int64_t, double> With(Request& request, Recompute mode) {
  ApplyRecompute(RecomputeChoice(), &request.config);
  request.config.mutable_shard()->set_recompute(mode);
  return FiguresOf(request);
}

// Budgets from what everything recomputed takes to what nothing does.
TEST(ChooseRecompute, FitsAndCostsLessTheMoreThereIs) {
  for (const char* model : {kGpt2, kLlama}) {
    for (int world : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(model, " world ", world));
      Request request(model, world);
      const auto [least, slowest] = With(request, FULL);
      const auto [most, fastest] = With(request, NONE);
      double before = 1e30;
      for (int step = 0; step <= 3; ++step) {
        const int64_t budget = least + (most - least) * step / 3;
        const auto choice = Choose(request, budget);
        ASSERT_TRUE(choice.ok()) << choice.status();
        EXPECT_LE(choice->chosen().arena_bytes(), budget);
        EXPECT_LE(choice->chosen().step_seconds(), before);
        EXPECT_LE(choice->chosen().step_seconds(), slowest);
        EXPECT_EQ(choice->none().arena_bytes(), most);
        EXPECT_EQ(choice->none().step_seconds(), fastest);
        before = choice->chosen().step_seconds();
        if (choice->has_runner_up()) {
          EXPECT_LE(choice->runner_up().arena_bytes(), budget);
          EXPECT_GE(choice->runner_up().step_seconds(), before);
        }
        // It is what it says: a plan that is verified, of that size and time.
        ApplyRecompute(*choice, &request.config);
        request.plan.verify = true;
        EXPECT_EQ(FiguresOf(request),
                  std::make_pair(choice->chosen().arena_bytes(), before));
        request.plan.verify = false;
        EXPECT_THAT(DescribeRecompute(*choice), HasSubstr("chosen"));
        EXPECT_EQ(choice->units_size() == 0, step == 3);
      }
      EXPECT_EQ(before, fastest);
    }
  }
}

// The choice comes first, others that fit behind it, none of them twice.
TEST(ChooseRecompute, RanksWhatFits) {
  Request request(kLlama);
  const int64_t least = With(request, FULL).first,
                most = With(request, NONE).first;
  const int64_t budget = (least + most) / 2;
  const auto first = Choose(request, budget);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto ranked = RankRecompute(request.plan, Seconds, "the test", 4);
  ASSERT_TRUE(ranked.ok()) << ranked.status();
  ASSERT_EQ(ranked->size(), 4u);
  EXPECT_EQ((*ranked)[0].SerializeAsString(), first->SerializeAsString());
  std::set<std::string> known;
  double before = 0;
  for (const RecomputeChoice& choice : *ranked) {
    EXPECT_LE(choice.chosen().arena_bytes(), budget);
    EXPECT_GE(choice.chosen().step_seconds(), before);
    before = choice.chosen().step_seconds();
    EXPECT_TRUE(known.insert(choice.chosen().what()).second);
    ApplyRecompute(choice, &request.config);
    EXPECT_EQ(FiguresOf(request),
              std::make_pair(choice.chosen().arena_bytes(), before));
  }
  request.Auto(most);
  const auto free = RankRecompute(request.plan, Seconds, "the test", 4);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_EQ((*free)[0].units_size(), 0);
}

// No choice of options for the blocks is better, of all that there are.
TEST(ChooseRecompute, IsTheBestOfAll) {
  std::vector<RecomputeUnits> options(1);
  options[0].set_recompute(NONE);
  for (int set = 1; set < 16; ++set) {
    RecomputeUnits& option = options.emplace_back();
    option.set_recompute(SELECTIVE);
    const std::vector<std::vector<const char*>> parts = {
        {"norm"},
        {"pointwise", "random"},
        {"attention", "embedding"},
        {"feed_forward"}};
    for (int i = 0; i < 4; ++i) {
      if ((set >> i & 1) == 0) continue;
      for (const char* op : parts[i]) option.add_recompute_ops(op);
    }
  }
  options.emplace_back().set_recompute(FULL);

  Request request(kLlama);
  // The last block saves nothing where it recomputes.
  std::vector<std::pair<int64_t, double>> all;
  for (const RecomputeUnits& first : options) {
    for (const RecomputeUnits& second : options) {
      RecomputeChoice choice;
      for (const auto& [index, option] : {std::pair(0, &first), {1, &second}}) {
        RecomputeUnits* unit = choice.add_units();
        *unit = *option;
        unit->set_pattern(absl::StrCat("model.layers.", index));
      }
      ApplyRecompute(choice, &request.config);
      all.push_back(FiguresOf(request));
    }
  }
  const int64_t least = With(request, FULL).first,
                most = With(request, NONE).first;
  for (int step = 1; step < 4; ++step) {
    const int64_t budget = least + (most - least) * step / 4;
    double best = 1e30;
    for (const auto& [bytes, seconds] : all)
      if (bytes <= budget) best = std::min(best, seconds);
    const auto choice = Choose(request, budget);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_LE(choice->chosen().step_seconds(), best * (1 + 1e-12))
        << "budget " << step << "/4: " << DescribeRecompute(*choice);
  }
}

TEST(ChooseRecompute, SaysWhatWouldBeEnough) {
  Request request(kGpt2);
  const auto none = Choose(request, 0);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("set shard.memory_budget_bytes"));

  const auto little = Choose(request, 1000);
  EXPECT_EQ(little.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(little.status().message());
  EXPECT_THAT(message, HasSubstr("shard.memory_budget_bytes = 1000 bytes"));
  EXPECT_THAT(message, HasSubstr("data.micro_batch_size (2)"));
  const size_t at = message.find("a rank needs ");
  ASSERT_NE(at, std::string::npos) << message;
  const int64_t least = std::stoll(message.substr(at + 13));
  EXPECT_TRUE(Choose(request, least).ok());
  EXPECT_FALSE(Choose(request, least - 1).ok());

  // The target's memory is what counts without a budget.
  request.plan.target.set_memory_bytes(least);
  const auto by_target = Choose(request, 0);
  ASSERT_TRUE(by_target.ok()) << by_target.status();
  EXPECT_EQ(by_target->budget_bytes(), least);
}

TEST(ChooseRecompute, KeyTellsWhatItWasChosenFor) {
  Request request(kGpt2);
  const auto [most, fastest] = With(request, NONE);
  const auto choice = Choose(request, most - 1);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_GT(choice->units_size(), 0);
  EXPECT_EQ(*RecomputeKey(request.plan), choice->key());
  EXPECT_EQ(choice->SerializeAsString(),
            Choose(request, most - 1)->SerializeAsString());
  request.Auto(most - 2);
  EXPECT_NE(*RecomputeKey(request.plan), choice->key());
  request.Auto(most - 1);
  request.config.mutable_data()->set_sequence_length(15);
  EXPECT_NE(*RecomputeKey(request.plan), choice->key());
}

}  // namespace
}  // namespace shardgraph
