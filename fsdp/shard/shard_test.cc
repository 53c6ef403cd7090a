#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/shard/flat_parameter.h"
#include "fsdp/shard/recompute_policy.h"
#include "fsdp/shard/strategy.h"
#include "fsdp/shard/wrap_policy.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "graph/model/testing/model_text.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTied[] =
    "gpt2 { vocab_size: 131 n_positions: 16 n_embd: 36 n_layer: 2 n_head: 3 }";
constexpr char kLlama[] =
    "llama { vocab_size: 131 hidden_size: 36 intermediate_size: 50 "
    "num_hidden_layers: 2 num_attention_heads: 6 "
    "num_key_value_heads: 2 }";

std::vector<std::string> UnitNames(const Model& model, const ShardSpec& spec) {
  const absl::StatusOr<std::vector<UnitRoot>> units = SelectUnits(model, spec);
  EXPECT_TRUE(units.ok()) << units.status();
  std::vector<std::string> names;
  for (const UnitRoot& unit : *units) names.push_back(unit.module->name());
  return names;
}

TEST(SelectUnits, ByBlockWrapsBlocksAndTables) {
  EXPECT_THAT(UnitNames(*ModelFromText(kLlama), ShardSpec()),
              ElementsAre("", "model.embed_tokens", "model.layers.0",
                          "model.layers.1", "lm_head"));
}

TEST(SelectUnits, ByClassAndByNameSayWhatThereIs) {
  const std::unique_ptr<Model> model = ModelFromText(kLlama);
  ShardSpec spec;
  spec.set_wrap_policy(BY_CLASS);
  EXPECT_THAT(std::string(SelectUnits(*model, spec).status().message()),
              HasSubstr("LlamaDecoderLayer"));
  spec.add_wrap_classes("LlamaMLP");
  EXPECT_THAT(UnitNames(*model, spec),
              ElementsAre("", "model.layers.0.mlp", "model.layers.1.mlp"));
  spec.add_wrap_classes("GPT2Block");
  EXPECT_THAT(std::string(SelectUnits(*model, spec).status().message()),
              HasSubstr("\"GPT2Block\""));

  spec.set_wrap_policy(BY_NAME);
  spec.set_wrap_pattern("model\\.layers\\.[0-9]+");
  EXPECT_THAT(UnitNames(*model, spec),
              ElementsAre("", "model.layers.0", "model.layers.1"));
  spec.set_wrap_pattern("layers");
  EXPECT_THAT(std::string(SelectUnits(*model, spec).status().message()),
              HasSubstr("matches no module name"));
  spec.set_wrap_pattern("(");
  EXPECT_THAT(std::string(SelectUnits(*model, spec).status().message()),
              HasSubstr("not a regular expression"));
}

// What must hold for every layout.
void CheckLayout(const Model& model, const ShardLayout& layout) {
  int64_t members = 0;
  for (const ShardUnit& unit : layout.units()) {
    const FlatParameter& flat = unit.flat;
    EXPECT_EQ(flat.padded_numel, flat.shard_numel * layout.shards());
    EXPECT_EQ(flat.shard_numel % kBlockAlignment, 0);
    int64_t end = 0, numel = 0;
    for (const FlatMember& member : flat.members) {
      EXPECT_GE(member.offset, end) << member.parameter->name;
      end = member.offset + member.parameter->numel();
      numel += member.parameter->numel();
      ++members;
    }
    EXPECT_LE(end, flat.padded_numel);
    EXPECT_EQ(numel, flat.numel);
    int64_t in_segments = 0, last = 0;
    for (const FlatSegment& segment : flat.segments) {
      EXPECT_GE(segment.begin, last);
      last = segment.end;
      in_segments += segment.end - segment.begin;
    }
    EXPECT_EQ(in_segments, numel);
    // The pieces of all shards are all elements, each once.
    std::map<int, int64_t> covered;
    for (int shard = 0; shard < layout.shards(); ++shard) {
      for (const MemberPiece& piece : flat.PiecesOf(shard)) {
        EXPECT_EQ(piece.member_begin, covered[piece.member]);
        EXPECT_EQ(shard * flat.shard_numel + piece.shard_begin,
                  flat.members[piece.member].offset + piece.member_begin);
        EXPECT_LE(piece.shard_begin + piece.elements, flat.shard_numel);
        covered[piece.member] += piece.elements;
      }
    }
    for (size_t m = 0; m < flat.members.size(); ++m) {
      EXPECT_EQ(covered[static_cast<int>(m)],
                flat.members[m].parameter->numel());
    }
  }
  EXPECT_EQ(members, static_cast<int64_t>(model.parameters().size()));
}

TEST(MakeLayout, CoversEveryParameterOnceAtAnyNumberOfShards) {
  for (const char* text : {kTied, kLlama}) {
    const std::unique_ptr<Model> model = ModelFromText(text);
    for (int shards : {1, 2, 3, 7, 1000}) {
      const absl::StatusOr<ShardLayout> layout =
          MakeLayout(*model, ShardSpec(), shards);
      ASSERT_TRUE(layout.ok()) << layout.status();
      CheckLayout(*model, *layout);
    }
  }
  EXPECT_FALSE(MakeLayout(*ModelFromText(kTied), ShardSpec(), 0).ok());
}

OptimizerSpec Optimizer(const std::string& text) {
  OptimizerSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec));
  return spec;
}

TEST(ParameterGroups, TheFirstPatternCounts) {
  const auto model = ModelFromText(kTied);
  const auto groups = ParameterGroups::Create(*model, Optimizer(R"(
      weight_decay: 0.1
      frozen: ".*wpe.*"
      groups { pattern: ".*bias" learning_rate_factor: 2 weight_decay: 0.3 }
      groups { pattern: ".*(h|wpe).*" learning_rate_factor: 0 })"));
  ASSERT_TRUE(groups.ok()) << groups.status();
  ASSERT_EQ(groups->groups().size(), 6u);
  EXPECT_EQ(groups->groups()[kDecayGroup].weight_decay, 0.1);
  EXPECT_EQ(groups->groups()[kNoDecayGroup].weight_decay, 0);
  int frozen = 0;
  for (const Parameter* parameter : model->parameters()) {
    const int32_t group = groups->Of(*parameter);
    if (parameter->name.find("wpe") != std::string::npos) {
      EXPECT_EQ(group, kFrozenGroup);
      ++frozen;
      continue;
    }
    const ParameterGroups::Group& settings = groups->groups()[group];
    const bool bias = parameter->name.rfind("bias") != std::string::npos;
    if (bias) {
      EXPECT_EQ(settings.learning_rate_factor, 2) << parameter->name;
      EXPECT_EQ(settings.weight_decay, 0.3);
    } else if (parameter->name.find(".h.") != std::string::npos) {
      EXPECT_EQ(settings.learning_rate_factor, 0) << parameter->name;
      EXPECT_EQ(settings.weight_decay, parameter->shape.size() > 1 ? 0.1 : 0);
    }
  }
  EXPECT_GT(frozen, 0);
  // Frozen parameters have flat parameters of their own.
  const auto layout = MakeLayout(*model, ShardSpec(), 2, *groups);
  ASSERT_TRUE(layout.ok());
  for (const ShardUnit& unit : layout->units()) {
    for (const FlatMember& member : unit.flat.members)
      EXPECT_EQ(unit.trainable, groups->Of(*member.parameter) >= 0);
  }
}

TEST(ParameterGroups, WrongPatternsAreNamed) {
  const auto model = ModelFromText(kTied);
  for (const auto& [text, words] :
       std::vector<std::pair<std::string, std::string>>{
           {"frozen: '('", "optimizer.frozen[0] is \"(\", which is not a"},
           {"frozen: 'none'", "matches no parameter"},
           {"frozen: '.*'", "leave something to train"},
           {"groups { pattern: 'x' }", "optimizer.groups[0].pattern"},
           {"groups {} groups {} groups {} groups {}", "at most 3"}}) {
    const auto groups = ParameterGroups::Create(*model, Optimizer(text));
    ASSERT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(groups.status().message().find(words), absl::string_view::npos)
        << groups.status();
  }
}

TEST(MakeLayout, TiedParametersLiveInTheLowestUnitAroundTheirOwners) {
  const std::unique_ptr<Model> model = ModelFromText(kTied);
  const absl::StatusOr<ShardLayout> layout = MakeLayout(*model, ShardSpec(), 2);
  ASSERT_TRUE(layout.ok()) << layout.status();
  for (const Parameter* parameter : model->parameters()) {
    if (parameter->name != "transformer.wte.weight") continue;
    EXPECT_EQ(layout->units()[layout->PlaceOf(*parameter).unit].name, "");
  }
}

TEST(MakeLayout, StacksLieSideBySideAndDecayFollowsTheDimensions) {
  const std::unique_ptr<Model> model = ModelFromText(kLlama);
  const absl::StatusOr<ShardLayout> layout = MakeLayout(*model, ShardSpec(), 3);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_FALSE(model->stacks().empty());
  for (const auto& stack : model->stacks()) {
    const ShardLayout::Place first = layout->PlaceOf(*stack[0]);
    const FlatParameter& flat = layout->units()[first.unit].flat;
    int64_t end = flat.members[first.member].offset;
    EXPECT_EQ(end % kBlockAlignment, 0);
    for (const Parameter* parameter : stack) {
      EXPECT_EQ(flat.members[layout->PlaceOf(*parameter).member].offset, end);
      end += parameter->numel();
    }
  }
  for (const ShardUnit& unit : layout->units()) {
    for (const FlatMember& member : unit.flat.members) {
      for (const FlatSegment& segment : unit.flat.segments) {
        if (member.offset < segment.begin || member.offset >= segment.end)
          continue;
        EXPECT_EQ(segment.group, member.parameter->shape.size() >= 2
                                     ? kDecayGroup
                                     : kNoDecayGroup);
      }
    }
  }
}

ShardSpec Shard(const std::string& text) {
  ShardSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec));
  return spec;
}

TEST(RecomputePolicy, UnitsDoAsTheFirstPatternThatMatchesSays) {
  const auto model = ModelFromText(kLlama);
  const ShardSpec spec = Shard(
      "recompute: SELECTIVE recompute_ops: ['norm', 'silu'] "
      "recompute_units { pattern: '.*layers.0' recompute: FULL } "
      "recompute_units { pattern: '.*layers[.][0-9]' recompute: SELECTIVE "
      "recompute_ops: 'feed_forward' } "
      "recompute_units { pattern: 'lm_head' }");
  const auto layout = MakeLayout(*model, spec, 1);
  ASSERT_TRUE(layout.ok());
  const auto policy = RecomputePolicy::Create(spec, *layout);
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_TRUE(policy->any());
  for (size_t i = 0; i < layout->units().size(); ++i) {
    const std::string& name = layout->units()[i].name;
    SCOPED_TRACE(name);
    const auto again = [&](const char* op, bool feed_forward) {
      return policy->Recomputes(static_cast<int>(i), op, feed_forward);
    };
    const bool full = name == "model.layers.0",
               feed_forward = name == "model.layers.1",
               some = name == "model.embed_tokens";
    EXPECT_EQ(again("matmul", false), full);
    EXPECT_EQ(again("matmul", true), full || feed_forward);
    EXPECT_EQ(again("rms_norm", false), full || some);
    EXPECT_EQ(again("silu", false), full || some);
    EXPECT_EQ(again("gelu", true), full || feed_forward);
    EXPECT_EQ(again("gelu", false), full);
  }
  EXPECT_FALSE(RecomputePolicy::Create(Shard(""), *layout)->any());
}

TEST(RecomputePolicy, SaysWhatIsWrong) {
  const auto model = ModelFromText(kLlama);
  const auto layout = MakeLayout(*model, ShardSpec(), 1);
  for (const auto& [text, words] :
       std::vector<std::pair<std::string, std::string>>{
           {"recompute: AUTO", "nothing has been chosen"},
           {"recompute_units { pattern: '(' }", "is not a regular expression"},
           {"recompute_units { pattern: 'lm_head' } recompute_units { pattern: "
            "'layers' }",
            "shard.recompute_units[1].pattern is \"layers\", which matches no "
            "unit"}}) {
    const auto policy = RecomputePolicy::Create(Shard(text), *layout);
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr(words));
  }
}

TEST(UnitPattern, MatchesTheNamesAlone) {
  EXPECT_EQ(UnitPattern({"model.layers.0", "lm_head"}),
            "model[.]layers[.]0|lm_head");
  const std::vector<std::string> names = {"a.b",   "a^b", "[a]", "a\\d", "a-b",
                                          "(a|b)", "a*",  "{1}", "a$"};
  const std::regex regex(UnitPattern(names));
  for (const std::string& name : names)
    EXPECT_TRUE(std::regex_match(name, regex)) << name;
  for (const char* other : {"axb", "ab", "a", "a1", "a\\", "aa", "1", "b", ""})
    EXPECT_FALSE(std::regex_match(other, regex)) << other;
}

TEST(GroupsOf, ReshardGroupsDivideTheShardGroup) {
  const auto groups = [](ShardStrategy strategy, int shard_size,
                         int reshard_size, int world) {
    ShardSpec spec;
    spec.set_strategy(strategy);
    spec.set_shard_group_size(shard_size);
    spec.set_reshard_group_size(reshard_size);
    return GroupsOf(spec, world);
  };
  EXPECT_EQ(groups(FULL_SHARD, 0, 0, 8)->reshard, 8);
  EXPECT_EQ(groups(FULL_SHARD, 0, 8, 8)->reshard, 8);
  EXPECT_EQ(groups(FULL_SHARD, 0, 2, 8)->reshard, 2);
  EXPECT_EQ(groups(FULL_SHARD, 0, 1, 8)->reshard, 1);
  EXPECT_EQ(groups(HYBRID, 4, 0, 8)->reshard, 4);
  EXPECT_EQ(groups(HYBRID, 4, 2, 8)->reshard, 2);
  EXPECT_EQ(groups(NO_SHARD, 0, 0, 8)->reshard, 1);
  for (const absl::Status& status :
       {groups(FULL_SHARD, 0, 3, 8).status(), groups(HYBRID, 4, 8, 8).status(),
        groups(FULL_SHARD, 0, -2, 8).status(),
        groups(SHARD_GRAD_OP, 0, 2, 8).status(),
        groups(ZERO1, 0, 8, 8).status(), groups(NO_SHARD, 0, 1, 8).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("shard.reshard_group_size is "),
              absl::string_view::npos);
  }
}

}  // namespace
}  // namespace shardgraph
