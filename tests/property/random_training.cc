#include "tests/property/random_training.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/shard/strategy.h"
#include "graph/model/module.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "tests/property/random_model.h"

namespace shardgraph {
namespace {

// Modules that a policy may name.
void Wrappable(const Module& module, std::vector<const Module*>* modules) {
  for (const auto& child : module.children()) {
    if (!child->list() && !child->transparent())
      modules->push_back(child.get());
    Wrappable(*child, modules);
  }
}

void DrawWrapPolicy(Draw& draw, const Model& model, ShardSpec* shard) {
  std::vector<const Module*> modules;
  Wrappable(model.root(), &modules);
  const auto any = [&]() -> const Module& {
    return *modules[draw.Int(0, static_cast<int64_t>(modules.size()) - 1)];
  };
  switch (draw.Int(0, 4)) {
    case 0:
      shard->set_wrap_policy(SIZE_BASED);
      shard->set_min_num_params(draw.Int(1, model.numel()));
      break;
    case 1:
      shard->set_wrap_policy(BY_CLASS);
      for (int64_t i = draw.Int(1, 2); i > 0; --i)
        shard->add_wrap_classes(any().class_name());
      break;
    case 2: {
      shard->set_wrap_policy(BY_NAME);
      std::string pattern = absl::StrReplaceAll(any().name(), {{".", "\\."}});
      if (draw.Chance(60)) {  // all copies of it
        std::string all;
        for (const char c : pattern)
          absl::StrAppend(&all,
                          c >= '0' && c <= '9' ? "[0-9]+" : std::string(1, c));
        pattern = all;
      }
      shard->set_wrap_pattern(pattern);
      break;
    }
    default:
      shard->set_wrap_policy(BY_BLOCK);
  }
}

void DrawShard(Draw& draw, const Model& model, int world, ShardSpec* shard) {
  DrawWrapPolicy(draw, model, shard);
  shard->set_strategy(draw.Pick({FULL_SHARD, FULL_SHARD, SHARD_GRAD_OP, ZERO1,
                                 NO_SHARD, HYBRID, HYBRID}));
  if (shard->strategy() == HYBRID) {
    shard->set_shard_group_size(world == 4 ? draw.Pick({1, 2, 4})
                                           : draw.Pick({1, world}));
  }
  if (draw.Chance(50)) {
    shard->set_reshard_after_forward(MayReshard(shard->strategy()) &&
                                     draw.Chance(50));
  }
  if (MayReshard(shard->strategy()) &&
      (!shard->has_reshard_after_forward() || shard->reshard_after_forward()) &&
      draw.Chance(40)) {
    const int ranks =
        shard->strategy() == HYBRID ? shard->shard_group_size() : world;
    shard->set_reshard_group_size(ranks == 4 ? draw.Pick({1, 2, 2, 4})
                                             : draw.Pick({1, ranks}));
  }
  shard->set_reduce_once(draw.Chance(30));
  if (draw.Chance(80)) shard->set_prefetch(draw.Int(0, 4));
  if (draw.Chance(30)) {
    const int prefetch = shard->has_prefetch() ? shard->prefetch() : 1;
    shard->set_max_units_in_flight(prefetch + draw.Int(1, 3));
  }
  switch (draw.Int(0, 3)) {
    case 0:
      shard->set_recompute(FULL);
      break;
    case 1:
      shard->set_recompute(SELECTIVE);
      for (const char* op :
           {"gelu", "silu", "relu", "swiglu", "layer_norm", "rms_norm",
            "attention", "matmul", "rotary", "dropout", "add"}) {
        if (draw.Chance(40)) shard->add_recompute_ops(op);
      }
      if (draw.Chance(40)) shard->add_recompute_ops("feed_forward");
      if (shard->recompute_ops().empty()) shard->add_recompute_ops("norm");
      break;
    default:
      break;
  }
}

}  // namespace

RandomTraining DrawTraining(uint64_t seed) {
  Draw draw(seed);
  RandomTraining training;
  training.seed = seed;
  training.world = static_cast<int>(draw.Int(1, 4));
  training.lanes = draw.Pick({1, 2, 4});
  TrainConfig& config = training.config;
  *config.mutable_model() = DrawModel(draw, /*max_positions=*/24);
  const auto model = MakeModel(config.model());
  SG_CHECK_OK(model) << "seed " << seed << ": "
                     << config.model().ShortDebugString();
  DrawShard(draw, **model, training.world, config.mutable_shard());
  config.mutable_precision()->set_compute(draw.Pick({FP32, BF16}));
  config.mutable_precision()->set_reduce(draw.Pick({FP32, FP32, BF16}));

  OptimizerSpec* optimizer = config.mutable_optimizer();
  optimizer->set_kind(draw.Pick({OptimizerSpec::ADAMW, OptimizerSpec::SGD}));
  optimizer->set_momentum(draw.Pick({0.0, 0.9}));
  const std::vector<const Parameter*>& parameters = (*model)->parameters();
  const auto any = [&] {
    return absl::StrReplaceAll(
        parameters[draw.Int(0, static_cast<int64_t>(parameters.size()) - 1)]
            ->name,
        {{".", "\\."}});
  };
  if (parameters.size() > 3) {
    if (draw.Chance(30)) {
      for (int64_t i = draw.Int(1, 3); i > 0; --i) optimizer->add_frozen(any());
    }
    for (int64_t i = draw.Chance(30) ? draw.Int(1, 3) : 0; i > 0; --i) {
      ParameterGroup* group = optimizer->add_groups();
      group->set_pattern(any());
      group->set_learning_rate_factor(draw.Pick({0.0, 0.5, 2.0}));
      if (draw.Chance(50)) group->set_weight_decay(draw.Pick({0.0, 0.3}));
    }
  }
  optimizer->set_max_gradient_norm(draw.Pick({0.0, 1.0}));
  config.mutable_schedule()->set_kind(ScheduleSpec::CONSTANT);

  DataSpec* data = config.mutable_data();
  const int64_t positions =
      (*model)->max_positions() == 0 ? 24 : (*model)->max_positions();
  data->set_sequence_length(draw.Int(1, positions));
  data->set_micro_batch_size(draw.Int(1, 3));
  const int64_t most = training.world * data->micro_batch_size();
  const int64_t micro_batches = draw.Int(1, 3);
  // The last micro-batch may be filled with masked sequences.
  data->set_batch_size(most * micro_batches - draw.Int(0, most - 1));
  config.mutable_run()->set_seed(seed);

  training.evaluate = draw.Chance(50);
  training.generate = draw.Chance(30);
  GenerateShape& shape = training.generate_shape;
  shape.batch = draw.Int(1, 3);
  shape.cache_length = draw.Int(1, positions);
  shape.prefill_length = draw.Int(1, shape.cache_length);
  return training;
}

std::string Describe(const RandomTraining& training) {
  return absl::StrCat("seed ", training.seed, ", world ", training.world,
                      ", lanes ", training.lanes,
                      training.evaluate ? ", evaluates" : "",
                      training.generate ? ", generates" : "", ", config:\n",
                      training.config.DebugString());
}

}  // namespace shardgraph
