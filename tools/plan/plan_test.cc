// plan: flags, figures, formats; the program's exit status.
#include "tools/plan/plan.h"

#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/files/json.h"
#include "graph/builder.h"
#include "gtest/gtest.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/plan/report.h"
#include "tools/plan/timeline.h"

namespace shardgraph {
namespace {

using Json = nlohmann::json;

std::string PlanOf(const std::vector<std::string>& args) {
  const auto flags = ParsePlanFlags(args);
  SG_CHECK_OK(flags);
  const auto text = RunPlan(*flags);
  SG_CHECK_OK(text);
  return *text;
}

std::string ErrorOf(const std::vector<std::string>& args) {
  const auto flags = ParsePlanFlags(args);
  if (!flags.ok()) return std::string(flags.status().message());
  return std::string(RunPlan(*flags).status().message());
}

TEST(PlanFlags, WrongOnesAreNamed) {
  const std::vector<
      std::pair<std::vector<std::string>, std::vector<std::string>>>
      cases = {
          {{}, {"--config is missing"}},
          {{"--confg=quickstart"}, {"--confg", "did you mean --config?"}},
          {{"--config"}, {"--config has no value"}},
          {{"--config=quickstar"},
           {"quickstar", "did you mean \"quickstart\"?"}},
          {{"--config=quickstart", "--world_size=0"},
           {"--world_size", "is 0", "1 or more"}},
          {{"--config=quickstart", "--world_size=two"},
           {"--world_size", "\"two\"", "1 or more"}},
          {{"--config=quickstart", "--format=png"},
           {"--format", "\"png\"", "text, json or svg"}},
          {{"--config=quickstart", "--target=h1000"},
           {"h1000", "did you mean \"h100\"?"}},
          {{"--config=quickstart", "shard.prefetch=-1"},
           {"shard.prefetch", "-1"}},
          {{"--config=quickstart", "shrd.prefetch=1"},
           {"shrd", "did you mean \"shard\"?"}},
          {{"--config=quickstart", "prefetch"}, {"field.path=value"}},
          {{"--config=quickstart", "model.llama.num_attention_heads=7"},
           {"num_attention_heads", "7"}},
          {{"--config=quickstart", "shard.strategy=HYBRID",
            "shard.shard_group_size=3", "--world_size=4"},
           {"shard.shard_group_size is 3", "the world of 4 ranks"}},
      };
  for (const auto& [args, words] : cases) {
    const std::string error = ErrorOf(args);
    for (const std::string& word : words)
      EXPECT_TRUE(absl::StrContains(error, word)) << word << " in: " << error;
  }
}

int ExitStatusOf(const std::string& arguments) {
  const int status = std::system(
      absl::StrCat("tools/plan/plan > /dev/null 2>&1 ", arguments).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(PlanProgram, ExitStatus) {
  EXPECT_EQ(ExitStatusOf("--config=quickstart --world_size=2"), 0);
  EXPECT_EQ(ExitStatusOf("--help"), 0);
  EXPECT_EQ(ExitStatusOf("--config=quickstart --frmat=text"), 2);
  EXPECT_EQ(ExitStatusOf("--config=absent/config.textproto"), 2);
  EXPECT_EQ(ExitStatusOf("--config=quickstart shard.strategy=HYBRID"), 2);
  EXPECT_EQ(ExitStatusOf("--config=quickstart > /dev/full"), 1);
}

TEST(PlanJson, KeysAndFigures) {
  const Json json = ParseJson(PlanOf(
      {"--config=quickstart", "--world_size=2", "--target=cpu_avx2",
       "--format=json", "data.batch_size=16", "data.micro_batch_size=2"}));
  for (const char* key : {"units", "memory", "communication", "nodes", "events",
                          "flops", "hash"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["micro_batches"], 4);
  // Root, embedding, six blocks, head.
  ASSERT_EQ(json["units"].size(), 9u);
  EXPECT_EQ(json["units"][0]["name"], "");
  EXPECT_EQ(json["units"][2]["name"], "model.layers.0");
  int64_t shards = 0, once = 0;
  for (const Json& unit : json["units"]) {
    int64_t numel = 0;
    for (const Json& parameter : unit["parameters"]) {
      int64_t product = 1;
      for (const Json& size : parameter["shape"])
        product *= size.get<int64_t>();
      EXPECT_EQ(parameter["numel"], product);
      EXPECT_LE(parameter["offset"].get<int64_t>() + product,
                unit["padded_numel"].get<int64_t>());
      numel += product;
    }
    EXPECT_EQ(unit["numel"], numel);
    EXPECT_EQ(unit["padded_numel"], 2 * unit["shard_numel"].get<int64_t>());
    shards += unit["shard_numel"].get<int64_t>();
    if (unit["name"] == "lm_head" || unit["name"] == "model.embed_tokens")
      once += unit["shard_numel"].get<int64_t>();
  }
  // BF16 gathered in forward and, but for head and embedding, again in
  // backward; FP32 reduced; four micro-batches, one other rank.
  const Json& communication = json["communication"];
  EXPECT_EQ(communication["all_gather_bytes"], 4 * (2 * shards - once) * 2);
  EXPECT_EQ(communication["reduce_scatter_bytes"], 4 * shards * 4);
  EXPECT_EQ(communication["all_reduce_bytes"], 9 * 8 + 16);

  const Json& memory = json["memory"];
  EXPECT_EQ(memory["arena_bytes"], memory["persistent_bytes"].get<int64_t>() +
                                       memory["peak_bytes"].get<int64_t>());
  EXPECT_LE(memory["lower_bound_bytes"], memory["peak_bytes"]);
  EXPECT_EQ(memory["by_kind"]["master_parameter"], 4 * shards);
  EXPECT_EQ(memory["by_kind"]["optimizer_state"], 8 * shards);

  // Products of a block over 2 x 256 rows: q, o: C C; k, v: C C / 3; gate, up,
  // down: C F; scores and sums: half of T T C each. The head: C V.
  constexpr double kRows = 512, kWidth = 192, kInner = 512, kVocab = 256;
  const double block = 2 * kRows *
                           (2 * kWidth * kWidth + 2 * kWidth * kWidth / 3 +
                            3 * kWidth * kInner) +
                       2.0 * kRows * 256 * kWidth;
  const double forward = 6 * block + 2 * kRows * kWidth * kVocab;
  EXPECT_NEAR(json["flops"].get<double>() / (4 * 3 * forward), 1, 1e-12);
  EXPECT_GT(json["time"]["step_seconds"], 0);
  EXPECT_FALSE(json.contains("fit"));
}

// What README.md's table of strategies says, of four ranks, four micro-batches
// and BF16.
TEST(PlanJson, BytesOfEveryStrategyByFormula) {
  struct Case {
    const char* strategy;
    int64_t shard, replicate;  // ranks of a group
    int64_t reshard = 0;       // the same; 0: the shard group
  };
  for (const Case& c :
       {Case{"FULL_SHARD", 4, 1}, Case{"FULL_SHARD", 4, 1, 2},
        Case{"FULL_SHARD", 4, 1, 1}, Case{"SHARD_GRAD_OP", 4, 1},
        Case{"ZERO1", 4, 1}, Case{"NO_SHARD", 1, 4}, Case{"HYBRID", 2, 2},
        Case{"HYBRID", 1, 4}, Case{"HYBRID", 4, 1}}) {
    const std::string strategy = c.strategy;
    SCOPED_TRACE(absl::StrCat(strategy, " ", c.shard, " x ", c.replicate));
    std::vector<std::string> args = {"--config=quickstart",
                                     "--world_size=4",
                                     "--target=h100",
                                     "--format=json",
                                     "data.batch_size=32",
                                     "data.micro_batch_size=2",
                                     "shard.strategy=" + strategy};
    if (strategy == "HYBRID")
      args.push_back(absl::StrCat("shard.shard_group_size=", c.shard));
    if (c.reshard > 0)
      args.push_back(absl::StrCat("shard.reshard_group_size=", c.reshard));
    const Json json = ParseJson(PlanOf(args));
    int64_t shards = 0, once = 0;
    for (const Json& unit : json["units"]) {
      const int64_t numel = unit["shard_numel"];
      EXPECT_EQ(unit["padded_numel"], c.shard * numel);
      shards += numel;
      if (unit["name"] == "lm_head" || unit["name"] == "model.embed_tokens")
        once += numel;
    }
    const int64_t whole = c.shard * shards;  // elements, padded
    // Sums over groups of S of so many bytes move twice (S - 1) / S of them.
    const auto sum = [](int64_t bytes, int64_t size) {
      return 2 * bytes * (size - 1) / size;
    };
    // Of backward: pieces of reshard groups are larger and go to fewer ranks.
    const int64_t reshard = c.reshard > 0 ? c.reshard : c.shard;
    const int64_t again =
        (shards - once) * c.shard / reshard * (reshard - 1) * 2;
    const int64_t gathers = shards * (c.shard - 1) * 2;
    const Json& communication = json["communication"];
    EXPECT_EQ(communication["all_gather_bytes"], strategy == "ZERO1" ? gathers
                                                 : strategy == "SHARD_GRAD_OP"
                                                     ? 4 * gathers
                                                     : 4 * (gathers + again));
    EXPECT_EQ(communication["reduce_scatter_bytes"],
              4 * shards * (c.shard - 1) * 4);
    EXPECT_EQ(
        communication["all_reduce_bytes"],
        4 * sum(4 * shards, c.replicate) + sum(9 * 8, c.shard) + sum(16, 4));
    EXPECT_EQ(communication["all_to_all_bytes"], 0);
    const Json& kinds = json["memory"]["by_kind"];
    EXPECT_EQ(kinds["master_parameter"], 4 * shards);
    EXPECT_EQ(kinds["optimizer_state"], 8 * shards);
    EXPECT_EQ(kinds["gradient_shard"], 4 * shards);
    // Beside it, where memory peaks, pieces of reshard groups.
    const int64_t copies = 2 * (strategy == "ZERO1" ? whole : shards);
    EXPECT_GE(kinds["compute_parameter"], copies);
    EXPECT_LE(kinds["compute_parameter"],
              copies + (reshard > 1 && reshard < c.shard
                            ? 2 * (whole - c.shard * once) / reshard
                            : 0));
    EXPECT_EQ(kinds["compute_parameter"] > copies,
              reshard > 1 && reshard < c.shard);
    EXPECT_EQ(kinds["gathered_parameter"] == 0,
              c.shard == 1 || strategy == "ZERO1");
  }
}

TEST(PlanJson, FrozenParametersHaveNeitherGradientNorState) {
  const Json json = ParseJson(
      PlanOf({"--config=quickstart", "--world_size=2", "--target=cpu_avx2",
              "--format=json", "data.micro_batch_size=2",
              "optimizer.frozen=.*(mlp|embed_tokens).*"}));
  int64_t trained = 0, frozen = 0;
  for (const Json& unit : json["units"]) {
    (unit["trainable"] ? trained : frozen) +=
        unit["shard_numel"].get<int64_t>();
    for (const Json& parameter : unit["parameters"]) {
      const std::string name = parameter["name"];
      EXPECT_EQ(unit["trainable"],
                !absl::StrContains(name, "mlp") &&
                    !absl::StrContains(name, "embed_tokens"));
    }
  }
  EXPECT_GT(frozen, trained);
  const Json& kinds = json["memory"]["by_kind"];
  EXPECT_EQ(kinds["master_parameter"], 4 * trained);
  EXPECT_EQ(kinds["optimizer_state"], 8 * trained);
  EXPECT_EQ(kinds["gradient_shard"], 4 * trained);
  EXPECT_EQ(kinds["compute_parameter"], 2 * (trained + frozen));
  EXPECT_EQ(json["communication"]["reduce_scatter_bytes"],
            json["micro_batches"].get<int64_t>() * trained * 4);
}

// Four micro-batches: reduced once in place of four times, in BF16 in place of
// FP32; sums over replicas come back in FP32.
TEST(PlanJson, BytesOfReductionsByFormula) {
  struct Case {
    const char* strategy;
    int64_t shard, replicate;  // ranks of a group
  };
  for (const Case& c : {Case{"FULL_SHARD", 4, 1}, Case{"ZERO1", 4, 1},
                        Case{"NO_SHARD", 1, 4}, Case{"HYBRID", 2, 2}}) {
    for (const bool once : {false, true}) {
      for (const bool rounds : {false, true}) {
        SCOPED_TRACE(absl::StrCat(c.strategy, once ? ", once" : "",
                                  rounds ? ", in BF16" : ""));
        std::vector<std::string> args = {
            "--config=quickstart",
            "--world_size=4",
            "--target=h100",
            "--format=json",
            "data.batch_size=32",
            "data.micro_batch_size=2",
            absl::StrCat("shard.strategy=", c.strategy),
            absl::StrCat("shard.reduce_once=", once ? "true" : "false"),
            absl::StrCat("precision.reduce=", rounds ? "BF16" : "FP32")};
        if (std::string(c.strategy) == "HYBRID")
          args.push_back("shard.shard_group_size=2");
        const Json json = ParseJson(PlanOf(args));
        int64_t shards = 0;
        for (const Json& unit : json["units"])
          shards += unit["shard_numel"].get<int64_t>();
        const int64_t times = once ? 1 : 4;
        const Json& communication = json["communication"];
        EXPECT_EQ(communication["reduce_scatter_bytes"],
                  rounds ? 0 : times * shards * (c.shard - 1) * 4);
        EXPECT_EQ(communication["all_to_all_bytes"],
                  rounds ? times * 2 *
                               (shards * (c.shard - 1) +
                                shards / c.replicate * (c.replicate - 1))
                         : 0);
        if (c.shard == 1) {
          EXPECT_EQ(communication["all_gather_bytes"],
                    rounds ? times * 4 * shards / 4 * 3 : 0);
        }
        const int64_t small =
            2 * 9 * 8 * (c.shard - 1) / c.shard + 2 * 16 * 3 / 4;
        EXPECT_EQ(communication["all_reduce_bytes"],
                  small + (rounds ? 0
                                  : times * 2 * 4 * shards * (c.replicate - 1) /
                                        c.replicate));
        EXPECT_EQ(json["micro_batches"], 4);
        EXPECT_EQ(json["phases"].size(), once ? 3u : 2u);
      }
    }
  }
}

TEST(PlanJson, RecomputationIsNoModelWork) {
  const std::vector<std::string> args = {"--config=quickstart",
                                         "--format=json"};
  const Json none = ParseJson(PlanOf(args));
  std::vector<std::string> full_args = args;
  full_args.push_back("shard.recompute=FULL");
  const Json full = ParseJson(PlanOf(full_args));
  EXPECT_EQ(none["flops"], full["flops"]);
  EXPECT_LT(none["executed_flops"], full["executed_flops"]);
  EXPECT_NE(none["hash"], full["hash"]);
}

// A target with little memory, next to the test's other files.
std::string SmallTarget(int64_t memory_bytes) {
  const std::string path = absl::StrCat(testing::TempDir(), "/small.textproto");
  std::ofstream(path) << "name: \"small\" lanes: 2 buffer_alignment: 256 "
                         "window_alignment: 4096 bf16_flops: 1e12 fp32_flops: "
                         "1e11 memory_bandwidth: 1e10 network_bandwidth: 1e9 "
                         "memory_bytes: "
                      << memory_bytes << "\n";
  return path;
}

TEST(PlanRecompute, AutoIsWhatItSays) {
  std::vector<std::string> args = {"--config=quickstart", "--format=json",
                                   "data.micro_batch_size=8"};
  const Json none = ParseJson(PlanOf(args));
  const int64_t arena = none["memory"]["arena_bytes"];
  EXPECT_FALSE(none.contains("recompute"));
  args.push_back("shard.recompute=AUTO");
  args.push_back(absl::StrCat("shard.memory_budget_bytes=", arena - 1));
  const Json chosen = ParseJson(PlanOf(args));
  const Json& recompute = chosen["recompute"];
  EXPECT_EQ(recompute["budget_bytes"], arena - 1);
  EXPECT_EQ(recompute["none"]["arena_bytes"], arena);
  EXPECT_EQ(recompute["none"]["step_seconds"], none["time"]["step_seconds"]);
  EXPECT_EQ(recompute["chosen"]["arena_bytes"],
            chosen["memory"]["arena_bytes"]);
  EXPECT_LT(recompute["chosen"]["arena_bytes"], arena);
  EXPECT_EQ(recompute["chosen"]["step_seconds"],
            chosen["time"]["step_seconds"]);
  EXPECT_FALSE(recompute["units"].empty());
  args[1] = "--format=text";
  const std::string text = PlanOf(args);
  for (const std::string& words :
       {std::string("recompute AUTO: at most "), std::string("chosen"),
        recompute["chosen"]["what"].get<std::string>(),
        std::string("next best")})
    EXPECT_TRUE(absl::StrContains(text, words)) << words << " in:\n" << text;
}

TEST(PlanFit, SaysWhatWouldFit) {
  const auto plan = [](int64_t memory_bytes) {
    return ParseJson(
        PlanOf({"--config=quickstart", "--format=json",
                absl::StrCat("--target=", SmallTarget(memory_bytes)),
                "data.micro_batch_size=8"}));
  };
  const Json enough = plan(int64_t{1} << 40);
  EXPECT_EQ(enough["fit"]["missing_bytes"], 0);
  EXPECT_TRUE(enough["fit"]["settings"].empty());

  // One byte is missing: each change is enough, and is what it says.
  const int64_t arena = enough["memory"]["arena_bytes"];
  const Json short_of_one = plan(arena - 1);
  EXPECT_EQ(short_of_one["fit"]["missing_bytes"], 1);
  std::set<std::string> settings;
  for (const Json& setting : short_of_one["fit"]["settings"]) {
    settings.insert(setting["settings"].get<std::string>());
    EXPECT_LT(setting["arena_bytes"], arena);
    const Json again =
        ParseJson(PlanOf({"--config=quickstart", "--format=json",
                          absl::StrCat("--target=", SmallTarget(arena)),
                          "data.micro_batch_size=8", setting["settings"]}));
    EXPECT_EQ(again["memory"]["arena_bytes"], setting["arena_bytes"]);
  }
  EXPECT_EQ(settings, (std::set<std::string>{"shard.recompute=FULL",
                                             "data.micro_batch_size=4",
                                             "--world_size=2"}));
  EXPECT_TRUE(absl::StrContains(
      PlanOf({"--config=quickstart",
              absl::StrCat("--target=", SmallTarget(arena - 1)),
              "data.micro_batch_size=8"}),
      "does not fit"));

  const Json hopeless = plan(1000);
  EXPECT_TRUE(hopeless["fit"]["settings"].empty());
}

TEST(PlanText, SaysWhatMatters) {
  const std::string text =
      PlanOf({"--config=quickstart", "--world_size=2", "--target=cpu_avx2"});
  for (const char* words :
       {"quickstart: ", "over 2 ranks", "model.layers.0 .. model.layers.5  x6",
        "optimizer_state", "live at the peak", "all-gather", "model FLOPs",
        "communication lane idle", "hash "}) {
    EXPECT_TRUE(absl::StrContains(text, words)) << words << " in:\n" << text;
  }
}

// What attention takes on a GPU, and why not cuDNN.
TEST(PlanText, SaysWhichKernelsAttentionTakes) {
  for (const bool bf16 : {true, false}) {
    const std::vector<std::string> args = {
        "--config=quickstart", "--world_size=2", "--target=h100",
        "evaluation.every=0",
        bf16 ? "precision.compute=BF16" : "precision.compute=FP32"};
    const std::string text = PlanOf(args);
    EXPECT_TRUE(absl::StrContains(
        text, bf16 ? "  cuDNN\n"
                   : "  own kernel, as cuDNN has none: F32; it takes BF16\n"))
        << text;
    std::vector<std::string> json_args = args;
    json_args.push_back("--format=json");
    const Json json = ParseJson(PlanOf(json_args));
    ASSERT_EQ(json["attention"].size(), 2u);
    for (const Json& kernels : json["attention"]) {
      EXPECT_EQ(kernels["cudnn"], bf16);
      EXPECT_GT(kernels["nodes"], 0);
    }
  }
  EXPECT_FALSE(absl::StrContains(
      PlanOf({"--config=quickstart", "--world_size=2", "--target=cpu_avx2"}),
      "kernels of attention"));
}

// Elements are opened and closed; lanes, waits and memory are drawn.
TEST(PlanSvg, IsWellFormed) {
  const std::string svg = PlanOf({"--config=quickstart", "--world_size=2",
                                  "--target=h100", "--format=svg"});
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos;
       at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  for (const char* words : {">compute<", ">gather<", ">reduce<", "url(#wait)",
                            "url(#lost)", "gathered parameters", "arena "}) {
    EXPECT_TRUE(absl::StrContains(svg, words)) << words;
  }
  EXPECT_FALSE(absl::StrContains(svg, "nan"));
  EXPECT_FALSE(absl::StrContains(svg, "inf\""));
}

TEST(CostModel, MaximumOfComputeAndMemory) {
  Graph graph;
  graph.groups = {{"shard", 4, 1}};
  GraphBuilder b(&graph);
  b.SetPhase("micro");
  const ValueId x = b.Input("x", TensorType(DType::kBF16, {64, 32}));
  const ValueId w = b.Input("w", TensorType(DType::kBF16, {32, 16}));
  const ValueId y = b.Emit1("matmul", {x, w});
  b.Emit1("add", {y, y});
  const ValueId shard = b.Input("s", TensorType(DType::kF32, {100}));
  b.Emit1("all_gather", {shard},
          Attributes().SetString(kGroupAttribute, "shard").SetInt("size", 4));
  b.Emit1("all_reduce", {shard},
          Attributes().SetString(kGroupAttribute, "shard").SetInt("size", 4));
  TargetSpec target;
  target.set_bf16_flops(1000);
  target.set_fp32_flops(10);
  target.set_memory_bandwidth(1e6);
  target.set_network_bandwidth(10);
  target.set_network_latency(0.5);
  target.set_launch_latency(0.25);
  const NodeSeconds seconds = CostModel(target);
  EXPECT_DOUBLE_EQ(seconds(graph, graph.nodes[0]),
                   2.0 * 64 * 32 * 16 / 1000 + 0.25);
  target.set_memory_bandwidth(1);
  // Bytes: two operands and a result of 64 x 16.
  EXPECT_DOUBLE_EQ(CostModel(target)(graph, graph.nodes[1]),
                   3 * 64 * 16 * 2 + 0.25);
  // 1,600 bytes, of which a rank moves three quarters; an all-reduce of 400
  // moves twice that share.
  EXPECT_DOUBLE_EQ(seconds(graph, graph.nodes[2]), 1200 / 10.0 + 0.5);
  EXPECT_DOUBLE_EQ(seconds(graph, graph.nodes[3]), 2 * 300 / 10.0 + 0.5);
}

TEST(Print, Strategy) {
  ShardSpec shard;
  EXPECT_EQ(PrintStrategy(shard), "FULL_SHARD");
  shard.set_reshard_group_size(2);
  EXPECT_EQ(PrintStrategy(shard), "FULL_SHARD resharded to groups of 2");
  shard.set_strategy(HYBRID);
  shard.set_shard_group_size(8);
  EXPECT_EQ(PrintStrategy(shard),
            "HYBRID in groups of 8 resharded to groups of 2");
  shard.clear_reshard_group_size();
  EXPECT_EQ(PrintStrategy(shard), "HYBRID in groups of 8");
}

TEST(Print, Units) {
  EXPECT_EQ(PrintBytes(0), "0 B");
  EXPECT_EQ(PrintBytes(1023), "1023 B");
  EXPECT_EQ(PrintBytes(1024), "1.00 KiB");
  EXPECT_EQ(PrintBytes(1.5 * 1024 * 1024 * 1024), "1.50 GiB");
  EXPECT_EQ(PrintCount(0), "0");
  EXPECT_EQ(PrintCount(999), "999");
  EXPECT_EQ(PrintCount(-1000), "-1,000");
  EXPECT_EQ(PrintCount(124439808), "124,439,808");
  EXPECT_EQ(PrintSeconds(0.00123), "1.23 ms");
  EXPECT_EQ(PrintSeconds(2140), "35 min 40 s");
}

}  // namespace
}  // namespace shardgraph
