#include "tests/property/random_model.h"

#include <string>

namespace shardgraph {
namespace {

double DrawRate(Draw& draw) { return draw.Pick({0.0, 0.0, 0.1, 0.5}); }
// A product of up to 100 such weights does not enlarge: deep models without
// norms would be too sensitive to rounding to compare.
double DrawStd(Draw& draw) { return draw.Pick({0.02, 0.05, 0.1}); }
std::string DrawActivation(Draw& draw) {
  return draw.Pick({"gelu_new", "gelu", "relu", "silu"});
}

// Heads and their size, for a width of heads x size in [8, 100].
struct Heads {
  int64_t heads;
  int64_t key_value_heads;
  int64_t size;
  int64_t width() const { return heads * size; }
};

Heads DrawHeads(Draw& draw, bool even) {
  for (;;) {
    Heads heads;
    heads.heads = draw.Int(1, 8);
    heads.size = draw.Int(1, 24) * (even ? 2 : 1);
    heads.key_value_heads = draw.Int(1, heads.heads);
    if (heads.width() < 8 || heads.width() > 100) continue;
    while (heads.heads % heads.key_value_heads != 0) --heads.key_value_heads;
    return heads;
  }
}

Gpt2Spec DrawGpt2(Draw& draw, int64_t positions) {
  const Heads heads = DrawHeads(draw, /*even=*/false);
  Gpt2Spec spec;
  spec.set_vocab_size(draw.Int(2, 200));
  spec.set_n_positions(positions);
  spec.set_n_embd(heads.width());
  spec.set_n_head(heads.heads);
  spec.set_n_layer(draw.Int(1, 8));
  if (draw.Chance(50)) spec.set_n_inner(draw.Int(1, 150));
  spec.set_activation_function(DrawActivation(draw));
  spec.set_resid_pdrop(DrawRate(draw));
  spec.set_embd_pdrop(DrawRate(draw));
  spec.set_attn_pdrop(DrawRate(draw));
  spec.set_tie_word_embeddings(draw.Chance(50));
  spec.set_initializer_range(DrawStd(draw));
  return spec;
}

void DrawScaling(Draw& draw, RopeScaling* scaling) {
  scaling->set_factor(draw.Pick({2.0, 8.0}));
  scaling->set_low_freq_factor(1);
  scaling->set_high_freq_factor(4);
  scaling->set_original_max_position_embeddings(draw.Int(4, 64));
}

LlamaSpec DrawLlama(Draw& draw, int64_t positions) {
  const bool own_size = draw.Chance(25);  // width is not heads x size
  const Heads heads = DrawHeads(draw, /*even=*/true);
  LlamaSpec spec;
  spec.set_vocab_size(draw.Int(2, 200));
  spec.set_hidden_size(own_size ? draw.Int(8, 100) : heads.width());
  if (own_size) spec.set_head_dim(heads.size);
  spec.set_intermediate_size(draw.Int(1, 150));
  spec.set_num_hidden_layers(draw.Int(1, 8));
  spec.set_num_attention_heads(heads.heads);
  spec.set_num_key_value_heads(heads.key_value_heads);
  spec.set_max_position_embeddings(positions);
  spec.set_rope_theta(draw.Pick({100.0, 10000.0}));
  if (draw.Chance(20)) DrawScaling(draw, spec.mutable_rope_scaling());
  spec.set_tie_word_embeddings(draw.Chance(40));
  spec.set_attention_bias(draw.Chance(30));
  spec.set_qkv_bias(draw.Chance(30));
  spec.set_mlp_bias(draw.Chance(30));
  spec.set_qk_norm(draw.Chance(30));
  spec.set_initializer_range(DrawStd(draw));
  spec.set_attention_dropout(DrawRate(draw));
  spec.set_model_type(draw.Pick({"", "qwen2", "qwen3", "mistral"}));
  return spec;
}

// A tree of generic modules.
class Composer {
 public:
  Composer(Draw& draw, int64_t positions)
      : draw_(draw),
        positions_(positions),
        heads_(DrawHeads(draw, /*even=*/true)),
        vocab_size_(draw.Int(2, 200)) {}

  ModuleSpec Compose() {
    ModuleSpec root;
    SequentialSpec* top = root.mutable_sequential();
    // Tables and blocks under a module of their own, as Hugging Face has them,
    // or all in a row.
    const bool nested = draw_.Chance(50);
    SequentialSpec* body =
        nested ? Add(top, "body")->mutable_sequential() : top;
    EmbeddingSpec* embedding = Add(body, "tokens")->mutable_embedding();
    embedding->set_vocab_size(vocab_size_);
    embedding->set_width(width());
    embedding->mutable_init()->set_std(DrawStd(draw_));
    if (draw_.Chance(50)) {
      PositionEmbeddingSpec* table =
          Add(body, "positions")->mutable_position_embedding();
      table->set_positions(positions_);
      table->set_width(width());
    }
    if (draw_.Chance(30)) Dropout(body);
    Layers(body);
    if (draw_.Chance(70)) Norm(body, "norm");
    HeadSpec* head = Add(top, "head")->mutable_head();
    head->set_vocab_size(vocab_size_);
    head->set_width(width());
    if (draw_.Chance(40)) head->set_tied_to(nested ? "body.tokens" : "tokens");
    return root;
  }

 private:
  int64_t width() const { return heads_.width(); }

  // A child named `name`, or without a name when that is empty.
  ModuleSpec* Add(SequentialSpec* parent, const std::string& name) {
    return Name(parent->add_children(), name);
  }
  ModuleSpec* Add(ResidualSpec* parent, const std::string& name) {
    return Name(parent->add_children(), name);
  }
  ModuleSpec* Name(ModuleSpec* module, const std::string& name) {
    module->set_name(name);
    if (!name.empty() && draw_.Chance(30))
      module->set_class_name(draw_.Pick({"Part", "Mixer", "Layer"}));
    return module;
  }

  template <typename Parent>
  void Dropout(Parent* parent) {
    Add(parent, draw_.Chance(50) ? "" : "drop")
        ->mutable_dropout()
        ->set_rate(DrawRate(draw_));
  }

  template <typename Parent>
  void Norm(Parent* parent, const std::string& name) {
    ModuleSpec* module = Add(parent, name);
    if (draw_.Chance(50)) {
      module->mutable_layer_norm()->set_width(width());
      module->mutable_layer_norm()->set_bias(draw_.Chance(50));
    } else {
      module->mutable_rms_norm()->set_width(width());
    }
  }

  void Attention(ModuleSpec* module) {
    if (draw_.Chance(20)) module->set_class_name("MultiheadAttention");
    AttentionSpec* attention = module->mutable_attention();
    attention->set_width(width());
    attention->set_heads(heads_.heads);
    attention->set_key_value_heads(heads_.key_value_heads);
    attention->set_head_dim(heads_.size);
    attention->set_fused(draw_.Chance(40));
    attention->set_qkv_bias(draw_.Chance(40));
    attention->set_output_bias(draw_.Chance(40));
    attention->set_qk_norm(draw_.Chance(20));
    attention->set_dropout(DrawRate(draw_));
    attention->set_output_dropout(DrawRate(draw_));
    if (draw_.Chance(40)) attention->mutable_rotary();
    attention->mutable_init()->set_std(DrawStd(draw_));
  }

  void FeedForward(ModuleSpec* module) {
    FeedForwardSpec* mlp = module->mutable_feed_forward();
    mlp->set_width(width());
    mlp->set_inner(draw_.Int(1, 150));
    mlp->set_gated(draw_.Chance(50));
    if (!mlp->gated()) mlp->set_activation(DrawActivation(draw_));
    mlp->set_bias(draw_.Chance(50));
    mlp->set_input_major(!mlp->gated() && draw_.Chance(40));
    mlp->set_output_dropout(DrawRate(draw_));
    mlp->mutable_init()->set_std(DrawStd(draw_));
  }

  // Two products with a function between them: widths that nothing divides.
  template <typename Parent>
  void Products(Parent* parent) {
    const int64_t inner = draw_.Int(1, 120);
    const auto product = [&](const std::string& name, int64_t in, int64_t out) {
      LinearSpec* linear = Add(parent, name)->mutable_linear();
      linear->set_in(in);
      linear->set_out(out);
      linear->set_bias(draw_.Chance(50));
      linear->set_input_major(draw_.Chance(50));
      linear->mutable_init()->set_std(DrawStd(draw_));
    };
    product("into", width(), inner);
    Add(parent, draw_.Chance(50) ? "" : "act")
        ->mutable_activation()
        ->set_function(DrawActivation(draw_));
    product("back", inner, width());
  }

  // One residual branch, or what stands in its place.
  void Branch(SequentialSpec* parent, const std::string& name) {
    const bool residual = draw_.Chance(85);
    ModuleSpec* module = Add(parent, name);
    const auto fill = [&](auto* children) {
      if (draw_.Chance(85)) Norm(children, "norm");
      switch (draw_.Int(0, 3)) {
        case 0:
        case 1:
          Attention(Add(children, "mix"));
          break;
        case 2:
          FeedForward(Add(children, "mlp"));
          break;
        default:
          Products(children);
      }
      if (draw_.Chance(20)) Dropout(children);
    };
    if (residual) {
      fill(module->mutable_residual());
    } else {
      fill(module->mutable_sequential());
    }
  }

  void Block(ModuleSpec* module) {
    module->set_block(draw_.Chance(70));
    if (draw_.Chance(50)) module->set_class_name("Block");
    SequentialSpec* children = module->mutable_sequential();
    const int64_t branches = draw_.Int(1, 2);
    for (int64_t i = 0; i < branches; ++i)
      Branch(children, "branch" + std::to_string(i));
  }

  // One to eight blocks: copies of one, or each its own.
  void Layers(SequentialSpec* body) {
    const int64_t depth = draw_.Int(1, 8);
    switch (draw_.Int(0, 2)) {
      case 0: {
        RepeatSpec* repeat = Add(body, "layers")->mutable_repeat();
        repeat->set_count(depth);
        Block(repeat->mutable_body());
        break;
      }
      case 1:
        for (int64_t i = 0; i < depth; ++i)
          Block(Add(body, "layer" + std::to_string(i)));
        break;
      default: {  // copies of copies
        RepeatSpec* outer = Add(body, "stages")->mutable_repeat();
        outer->set_count((depth + 1) / 2);
        RepeatSpec* inner =
            Add(outer->mutable_body()->mutable_sequential(), "layers")
                ->mutable_repeat();
        inner->set_count(depth == 1 ? 1 : 2);
        Block(inner->mutable_body());
      }
    }
  }

  Draw& draw_;
  const int64_t positions_;
  const Heads heads_;
  const int64_t vocab_size_;
};

}  // namespace

ModelSpec DrawModel(Draw& draw, int64_t max_positions) {
  const int64_t positions = draw.Int(1, max_positions);
  ModelSpec spec;
  switch (draw.Int(0, 3)) {
    case 0:
      *spec.mutable_gpt2() = DrawGpt2(draw, positions);
      break;
    case 1:
      *spec.mutable_llama() = DrawLlama(draw, positions);
      break;
    default:
      *spec.mutable_module() = Composer(draw, positions).Compose();
  }
  return spec;
}

}  // namespace shardgraph
