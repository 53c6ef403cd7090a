#include "fsdp/train/step_builder.h"

#include <memory>
#include <string>
#include <utility>

#include "fsdp/config/text_config.h"
#include "fsdp/config/train_config.h"
#include "graph/passes.h"
#include "gtest/gtest.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// A model that leaves out the parameters of which the name holds `unused`:
// constants are in their place.
class Partial : public Model {
 public:
  Partial(std::unique_ptr<Model> model, std::string unused)
      : model_(std::move(model)), unused_(std::move(unused)) {}

  const Module& root() const override { return model_->root(); }
  const std::vector<const Parameter*>& parameters() const override {
    return model_->parameters();
  }
  const std::vector<std::pair<std::string, std::string>>& aliases()
      const override {
    return model_->aliases();
  }
  const std::vector<std::vector<const Parameter*>>& stacks() const override {
    return stacks_;
  }
  int64_t vocab_size() const override { return model_->vocab_size(); }
  int64_t max_positions() const override { return model_->max_positions(); }
  absl::StatusOr<ForwardResult> Emit(
      GraphBuilder& builder, ParameterSource& source,
      const ForwardOptions& options) const override {
    Constants constants(builder, source, unused_, options.compute);
    return model_->Emit(builder, constants, options);
  }

 private:
  class Constants : public ParameterSource {
   public:
    Constants(GraphBuilder& builder, ParameterSource& source,
              const std::string& unused, DType dtype)
        : builder_(builder), source_(source), unused_(unused), dtype_(dtype) {}
    ValueId Get(const Parameter& parameter) override {
      if (parameter.name.find(unused_) == std::string::npos)
        return source_.Get(parameter);
      return builder_.Emit1("fill", {},
                            Attributes()
                                .SetInts("shape", {parameter.shape.begin(),
                                                   parameter.shape.end()})
                                .SetString("dtype", DTypeName(dtype_))
                                .SetDouble("value", 0.5));
    }
    std::optional<ValueId> GetStacked(
        absl::Span<const Parameter* const>) override {
      return std::nullopt;
    }
    void Enter(const Module& module) override { source_.Enter(module); }
    void Exit(const Module& module, ValueId output) override {
      source_.Exit(module, output);
    }

   private:
    GraphBuilder& builder_;
    ParameterSource& source_;
    const std::string& unused_;
    const DType dtype_;
  };

  std::unique_ptr<Model> model_;
  std::string unused_;
  std::vector<std::vector<const Parameter*>> stacks_;
};

// Builds, schedules and verifies the steps on two ranks.
absl::Status Plan(const std::string& unused,
                  const std::vector<std::string>& overrides) {
  TrainConfig config;
  SG_CHECK_OK(ParseTextConfig(R"(
    model { gpt2 { vocab_size: 31 n_positions: 8 n_embd: 12 n_layer: 2
                   n_head: 2 } }
    data { batch_size: 4 sequence_length: 8 micro_batch_size: 1 }
    run { steps: 1 })",
                              "test", &config));
  for (const std::string& assignment : overrides)
    SG_CHECK_OK(ApplyOverride(assignment, &config));
  ResolveTrainConfig(8, 2, &config);
  const Partial model(*MakeModel(config.model()), unused);
  const ShardGroups groups = *GroupsOf(config.shard(), 2);
  const ParameterGroups parameters =
      *ParameterGroups::Create(model, config.optimizer());
  const ShardLayout layout =
      *MakeLayout(model, config.shard(), groups.shard, parameters);
  StepRequest request;
  request.model = &model;
  request.layout = &layout;
  request.groups = groups;
  request.parameter_groups = &parameters;
  request.config = &config;
  SG_ASSIGN_OR_RETURN(StepGraph step, BuildStep(request));
  TargetSpec target;
  target.set_lanes(2);
  SG_RETURN_IF_ERROR(Lower(step.graph, target, nullptr));
  StepPlan plan;
  SG_ASSIGN_OR_RETURN(plan.schedules, Schedule(step.graph, target, {}));
  SG_ASSIGN_OR_RETURN(plan.memory, PlanMemory(step.graph, plan.schedules));
  plan.graph = std::move(step.graph);
  plan.num_lanes = 2;
  return Verify(plan);
}

// One parameter of a unit, and all of one.
TEST(BuildStep, ParametersWithoutAGradientAreAnErrorOrZero) {
  for (const char* unused : {"h.1.mlp.c_fc.bias", "transformer.h.1."}) {
    SCOPED_TRACE(unused);
    for (const char* strategy :
         {"shard.strategy=FULL_SHARD", "shard.strategy=NO_SHARD",
          "shard.strategy=ZERO1"}) {
      for (const char* once :
           {"shard.reduce_once=false", "shard.reduce_once=true"}) {
        const absl::Status refused = Plan(unused, {strategy, once});
        EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_NE(refused.message().find("optimizer.allow_unused"),
                  absl::string_view::npos)
            << refused;
        const absl::Status allowed =
            Plan(unused, {strategy, once, "optimizer.allow_unused=true"});
        EXPECT_TRUE(allowed.ok()) << strategy << " " << once << " " << allowed;
      }
    }
  }
}

}  // namespace
}  // namespace shardgraph
