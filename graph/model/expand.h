// Family shorthands as module trees.
//
// Each checks the fields of its shorthand (errors name "model.gpt2.n_head" and
// the like), so that the tree it returns is sound.
#ifndef GRAPH_MODEL_EXPAND_H_
#define GRAPH_MODEL_EXPAND_H_

#include "absl/status/statusor.h"
#include "proto/model.pb.h"

namespace shardgraph {

// transformer.{wte, wpe, drop, h.{i}.{ln_1, attn, ln_2, mlp}, ln_f}, lm_head.
// As Hugging Face initialises it: normal weights; those that end a residual
// branch (c_proj) smaller by sqrt(2 n_layer).
absl::StatusOr<ModuleSpec> ExpandGpt2(const Gpt2Spec& spec);

// model.{embed_tokens, layers.{i}.{input_layernorm, self_attn,
// post_attention_layernorm, mlp}, norm}, lm_head.
absl::StatusOr<ModuleSpec> ExpandLlama(const LlamaSpec& spec);

}  // namespace shardgraph

#endif  // GRAPH_MODEL_EXPAND_H_
