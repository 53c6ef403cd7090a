#include "graph/model/defaults.h"

namespace shardgraph {
namespace {

constexpr double kInitStd = 0.02;

void FillInit(InitSpec* init) {
  if (!init->has_std()) init->set_std(kInitStd);
}

void FillAttention(AttentionSpec* attention) {
  if (attention->key_value_heads() == 0) {
    attention->set_key_value_heads(attention->heads());
  }
  if (attention->head_dim() == 0 && attention->heads() > 0 &&
      attention->width() % attention->heads() == 0) {
    attention->set_head_dim(attention->width() / attention->heads());
  }
  if (attention->qk_norm() && !attention->has_qk_norm_epsilon()) {
    attention->set_qk_norm_epsilon(1e-6);
  }
  if (attention->has_rotary() && !attention->rotary().has_theta()) {
    attention->mutable_rotary()->set_theta(10000);
  }
  FillInit(attention->mutable_init());
  FillInit(attention->mutable_output_init());
}

void FillFeedForward(FeedForwardSpec* feed_forward) {
  if (feed_forward->gated() && feed_forward->activation().empty()) {
    feed_forward->set_activation("silu");
  }
  FillInit(feed_forward->mutable_init());
  FillInit(feed_forward->mutable_output_init());
}

// Fills the fields of the kind and returns the kind's own class name.
const char* FillKind(ModuleSpec* module) {
  switch (module->kind_case()) {
    case ModuleSpec::kSequential:
      for (ModuleSpec& child :
           *module->mutable_sequential()->mutable_children()) {
        FillDefaults(&child);
      }
      return "Sequential";
    case ModuleSpec::kRepeat:
      FillDefaults(module->mutable_repeat()->mutable_body());
      return "ModuleList";
    case ModuleSpec::kResidual:
      for (ModuleSpec& child :
           *module->mutable_residual()->mutable_children()) {
        FillDefaults(&child);
      }
      return "Residual";
    case ModuleSpec::kEmbedding:
      FillInit(module->mutable_embedding()->mutable_init());
      return "Embedding";
    case ModuleSpec::kPositionEmbedding:
      FillInit(module->mutable_position_embedding()->mutable_init());
      return "PositionEmbedding";
    case ModuleSpec::kLinear:
      FillInit(module->mutable_linear()->mutable_init());
      return "Linear";
    case ModuleSpec::kLayerNorm: {
      LayerNormSpec* norm = module->mutable_layer_norm();
      if (!norm->has_epsilon()) norm->set_epsilon(1e-5);
      if (!norm->has_bias()) norm->set_bias(true);
      return "LayerNorm";
    }
    case ModuleSpec::kRmsNorm: {
      RmsNormSpec* norm = module->mutable_rms_norm();
      if (!norm->has_epsilon()) norm->set_epsilon(1e-6);
      return "RmsNorm";
    }
    case ModuleSpec::kAttention:
      FillAttention(module->mutable_attention());
      return "Attention";
    case ModuleSpec::kFeedForward:
      FillFeedForward(module->mutable_feed_forward());
      return "FeedForward";
    case ModuleSpec::kDropout:
      return "Dropout";
    case ModuleSpec::kActivation:
      return "Activation";
    case ModuleSpec::kHead:
      if (module->head().tied_to().empty()) {
        FillInit(module->mutable_head()->mutable_init());
      }
      return "Head";
    case ModuleSpec::KIND_NOT_SET:
      return "";
  }
  return "";
}

}  // namespace

void FillDefaults(ModuleSpec* module) {
  const char* class_name = FillKind(module);
  if (module->class_name().empty()) module->set_class_name(class_name);
}

int64_t LoraRank(const LoraSpec& spec) {
  return spec.rank() == 0 ? 8 : spec.rank();
}

double LoraScale(const LoraSpec& spec) {
  return spec.has_alpha() ? spec.alpha() / static_cast<double>(LoraRank(spec))
                          : 1;
}

}  // namespace shardgraph
