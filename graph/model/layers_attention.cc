// Attention: causal self-attention with its projections.
#include <array>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "graph/model/factory.h"
#include "graph/model/fields.h"
#include "graph/model/layers_linear.h"
#include "graph/model/layers_norm.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

Attributes RotaryAttributes(const RotarySpec& spec) {
  Attributes attributes;
  attributes.SetDouble("theta", spec.theta());
  if (spec.has_scaling()) {
    attributes.SetString("rope_type", "llama3");
    attributes.SetDouble("factor", spec.scaling().factor());
    attributes.SetDouble("low_freq_factor", spec.scaling().low_freq_factor());
    attributes.SetDouble("high_freq_factor", spec.scaling().high_freq_factor());
    attributes.SetInt("original_max_position",
                      spec.scaling().original_max_position_embeddings());
  }
  return attributes;
}

class AttentionLayer : public Layer {
 public:
  AttentionLayer(LayerInfo info, ModelFactory& factory,
                 const AttentionSpec& spec)
      : Layer(std::move(info)), spec_(spec) {
    const int64_t queries = spec.heads() * spec.head_dim();
    const int64_t keys = spec.key_value_heads() * spec.head_dim();
    const char* class_name = LinearClassName(spec.fused());
    const auto add = [&](absl::string_view name, int64_t in, int64_t out,
                         bool bias, double std) {
      return factory.AddPart<LinearLayer>(
          *this, name, class_name,
          LinearOptions{.in = in,
                        .out = out,
                        .bias = bias,
                        .input_major = spec.fused(),
                        .std = std});
    };
    const double std = spec.init().std();
    if (spec.fused()) {
      fused_ =
          add("c_attn", spec.width(), queries + 2 * keys, spec.qkv_bias(), std);
    } else {
      split_ = {add("q_proj", spec.width(), queries, spec.qkv_bias(), std),
                add("k_proj", spec.width(), keys, spec.qkv_bias(), std),
                add("v_proj", spec.width(), keys, spec.qkv_bias(), std)};
    }
    output_ = add(spec.fused() ? "c_proj" : "o_proj", queries, spec.width(),
                  spec.output_bias(), spec.output_init().std());
    if (spec.qk_norm()) {
      q_norm_ = factory.AddPart<RmsNormLayer>(
          *this, "q_norm", "RmsNorm", spec.head_dim(), spec.qk_norm_epsilon());
      k_norm_ = factory.AddPart<RmsNormLayer>(
          *this, "k_norm", "RmsNorm", spec.head_dim(), spec.qk_norm_epsilon());
    }
    if (!spec.fused()) StackLinears(split_, factory);
  }

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override {
    GraphBuilder& builder = context.builder;
    auto [q, k, v] = EmitProjections(context, x);
    if (q_norm_ != nullptr) {
      q = q_norm_->Run(context, q);
      k = k_norm_->Run(context, k);
    }
    if (spec_.has_rotary()) {
      const Attributes attributes = RotaryAttributes(spec_.rotary());
      q = builder.Emit1("rotary", {q, context.positions}, attributes);
      k = builder.Emit1("rotary", {k, context.positions}, attributes);
    }
    const ValueId heads = context.generating()
                              ? EmitCachedAttention(context, q, k, v)
                              : EmitAttention(context, q, k, v);
    const ValueId rows = builder.Reshape(
        heads, {context.rows(), spec_.heads() * spec_.head_dim()});
    return EmitDropout(context, output_->Run(context, rows),
                       spec_.output_dropout(),
                       absl::StrCat(site(), "/output_dropout"));
  }

 private:
  // q [B, T, H, D], k and v [B, T, K, D]: views of one product where the
  // parameters lie side by side.
  std::array<ValueId, 3> EmitProjections(EmitContext& context,
                                         ValueId x) const {
    GraphBuilder& builder = context.builder;
    const int64_t batch = context.options.batch;
    const int64_t length = context.options.length;
    const std::array<int64_t, 3> heads = {
        spec_.heads(), spec_.key_value_heads(), spec_.key_value_heads()};
    std::array<ValueId, 3> values;

    std::optional<ValueId> product;
    if (spec_.fused()) {
      product = fused_->Run(context, x);
    } else {
      product = EmitStackedLinears(context, x, split_);
    }
    int64_t offset = 0;
    for (int i = 0; i < 3; ++i) {
      const Dims shape = {batch, length, heads[i], spec_.head_dim()};
      if (product.has_value()) {
        const int64_t row = builder.type(*product).dim(1);
        values[i] = builder.View(*product, offset, shape,
                                 {length * row, row, spec_.head_dim(), 1});
        offset += heads[i] * spec_.head_dim();
      } else {
        values[i] = builder.Reshape(split_[i]->Run(context, x), shape);
      }
    }
    return values;
  }

  ValueId EmitAttention(EmitContext& context, ValueId q, ValueId k,
                        ValueId v) const {
    Attributes attributes = Attributes().SetInt("causal", 1);
    absl::InlinedVector<ValueId, 6> operands = {q, k, v};
    if (context.options.documents) {
      attributes.SetInt("has_documents", 1);
      operands.push_back(context.Documents());
    }
    if (context.training() && spec_.dropout() > 0) {
      attributes.SetDouble("dropout", spec_.dropout());
      attributes.SetInt("seed", static_cast<int64_t>(context.options.seed));
      attributes.SetInt("key", DropoutKey(absl::StrCat(site(), "/dropout")));
      operands.push_back(context.SequenceIds());
      operands.push_back(context.RunStep());
    }
    return context.builder.Emit("attention", operands,
                                std::move(attributes))[0];
  }

  // Over all keys and values so far: those of this phase are written to the
  // caches first.
  ValueId EmitCachedAttention(EmitContext& context, ValueId q, ValueId k,
                              ValueId v) const {
    GraphBuilder& builder = context.builder;
    const ValueId position = context.Position();
    k = builder.Emit1("kv_write", {Cache(context, "k_cache"), k, position});
    v = builder.Emit1("kv_write", {Cache(context, "v_cache"), v, position});
    return builder.Emit(
        "attention", {q, k, v, position},
        Attributes().SetInt("causal", 1).SetInt("has_offset", 1))[0];
  }

  // The cache as it is now; made by the first phase that asks for it.
  ValueId Cache(EmitContext& context, absl::string_view which) const {
    GraphBuilder& builder = context.builder;
    const TensorType type(context.options.compute,
                          {context.options.batch, context.options.cache_length,
                           spec_.key_value_heads(), spec_.head_dim()});
    const std::string name = absl::StrCat(site(), "/", which);
    BufferId buffer = builder.graph().FindBuffer(name);
    if (buffer == kNone) {
      buffer = builder.AddBuffer({.name = name,
                                  .bytes = type.span_bytes(),
                                  .lifetime = Lifetime::kRun,
                                  .kind = MemoryKind::kCache});
    }
    return builder.Current(buffer, type, 0);
  }

  AttentionSpec spec_;
  const LinearLayer* fused_ = nullptr;            // c_attn
  std::array<const LinearLayer*, 3> split_ = {};  // or q, k, v
  const LinearLayer* output_;
  const RmsNormLayer* q_norm_ = nullptr;
  const RmsNormLayer* k_norm_ = nullptr;
};

absl::Status CheckHeads(const AttentionSpec& spec, const std::string& path) {
  const auto field = [&](absl::string_view name) {
    return absl::StrCat(path, ".", name);
  };
  SG_RETURN_IF_ERROR(CheckSize(field("width"), spec.width()));
  SG_RETURN_IF_ERROR(CheckSize(field("heads"), spec.heads()));
  SG_RETURN_IF_ERROR(
      CheckSize(field("key_value_heads"), spec.key_value_heads()));
  SG_RETURN_IF_ERROR(CheckDivides(
      field("key_value_heads"), spec.key_value_heads(), "heads", spec.heads()));
  if (spec.head_dim() == 0) {
    SG_RETURN_IF_ERROR(
        CheckDivides(field("heads"), spec.heads(), "width", spec.width()));
  }
  SG_RETURN_IF_ERROR(CheckSize(field("head_dim"), spec.head_dim()));
  // No overflow: each factor is below 2^31.
  if (spec.heads() * spec.head_dim() > kMaxSize / 3) {
    return BadField(field("head_dim"), spec.head_dim(),
                    absl::StrCat("times ", spec.heads(),
                                 " heads must be at most ", kMaxSize / 3));
  }
  return absl::OkStatus();
}

absl::Status CheckRotary(const AttentionSpec& spec, const std::string& path) {
  const RotarySpec& rotary = spec.rotary();
  const std::string field = absl::StrCat(path, ".rotary");
  if (spec.head_dim() % 2 != 0) {
    return BadField(absl::StrCat(path, ".head_dim"), spec.head_dim(),
                    "must be even for rotary positions");
  }
  SG_RETURN_IF_ERROR(
      CheckPositive(absl::StrCat(field, ".theta"), rotary.theta()));
  if (rotary.has_scaling()) {
    SG_RETURN_IF_ERROR(
        CheckRopeScaling(absl::StrCat(field, ".scaling"), rotary.scaling()));
  }
  if (rotary.max_positions() == 0) return absl::OkStatus();
  return CheckSize(absl::StrCat(field, ".max_positions"),
                   rotary.max_positions());
}

}  // namespace

LayerOr MakeAttention(const AttentionSpec& spec, LayerInfo info,
                      const std::string& path, ModelFactory& factory) {
  const auto field = [&](absl::string_view name) {
    return absl::StrCat(path, ".", name);
  };
  SG_RETURN_IF_ERROR(CheckHeads(spec, path));
  if (spec.qk_norm()) {
    SG_RETURN_IF_ERROR(
        CheckPositive(field("qk_norm_epsilon"), spec.qk_norm_epsilon()));
  }
  SG_RETURN_IF_ERROR(CheckRate(field("dropout"), spec.dropout()));
  SG_RETURN_IF_ERROR(CheckRate(field("output_dropout"), spec.output_dropout()));
  SG_RETURN_IF_ERROR(CheckInit(field("init"), spec.init()));
  SG_RETURN_IF_ERROR(CheckInit(field("output_init"), spec.output_init()));
  SG_RETURN_IF_ERROR(factory.TakeActivations(field("width"), spec.width()));
  if (spec.has_rotary()) {
    SG_RETURN_IF_ERROR(CheckRotary(spec, path));
    factory.WantPositions();
    if (spec.rotary().max_positions() > 0) {
      factory.LimitPositions(spec.rotary().max_positions(),
                             field("rotary.max_positions"));
    }
  }
  info.attention = info.class_name == "MultiheadAttention";
  return std::make_unique<AttentionLayer>(std::move(info), factory, spec);
}

}  // namespace shardgraph
