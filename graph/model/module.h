// Module: the tree made from a ModelSpec, with Hugging Face parameter names,
// that emits the forward nodes.
//
// A Model owns its modules and parameters. It knows nothing of ranks, shards or
// dtypes of storage: parameters come from a ParameterSource (fsdp gathers them;
// tests hand out plain buffers). Immutable after MakeModel; emission is const.
#ifndef GRAPH_MODEL_MODULE_H_
#define GRAPH_MODEL_MODULE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/builder.h"
#include "proto/model.pb.h"

namespace shardgraph {

struct Parameter {
  enum class Init : uint8_t { kZeros, kOnes, kNormal };

  std::string
      name;  // Hugging Face's: "model.layers.0.self_attn.q_proj.weight"; of the
             // first owner when tied
  Dims shape;
  Init init = Init::kZeros;
  double std = 0;        // of kNormal
  bool adapter = false;  // of LoRA: trained, while nothing else is

  int64_t numel() const { return NumElements(shape); }
};

class Module;

// Where emission gets parameters from, and what is told of its course.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // The whole parameter in the compute dtype, as a value of its shape, valid
  // where the builder stands.
  virtual ValueId Get(const Parameter& parameter) = 0;
  // Parameters [n_i, k] (or vectors [n_i]) of equal k as one value [sum n_i,
  // k], when they lie side by side; nullopt when they do not: the caller then
  // uses them one by one.
  virtual std::optional<ValueId> GetStacked(
      absl::Span<const Parameter* const> parameters) = 0;
  // Around everything that `module` emits; `output` is its result. Not called
  // for transparent modules.
  virtual void Enter(const Module& module) {}
  virtual void Exit(const Module& module, ValueId output) {}
};

enum class ForwardMode : uint8_t {
  kTrain,     // loss, dropout on
  kEvaluate,  // loss, dropout off
  kGenerate,  // logits of one row of each sequence; keys and values kept in
              // caches from StepState::position on. Prefill and decode are
              // phases of equal batch and cache_length over the same caches
};

struct ForwardOptions {
  ForwardMode mode = ForwardMode::kTrain;
  int64_t batch = 1;   // B: sequences
  int64_t length = 1;  // T: tokens of each
  DType compute = DType::kBF16;
  uint64_t seed = 0;            // of dropout
  int64_t cache_length = 0;     // S: kGenerate; capacity of the caches
  bool documents = false;       // attention stays within documents
  int64_t loss_chunk_rows = 0;  // rows of logits at a time; 0: chosen
  double label_smoothing = 0;   // of cross_entropy_head
  double z_loss = 0;
  std::string input_prefix;  // of the names of batch tensors: phases of other
                             // shapes have their own
};

// Inputs are named batch tensors of the graph, their names behind input_prefix:
// "tokens" I32[B*T], "targets" I32[B*T] (-100: masked), "sequence_ids" I64[B]
// (only with dropout), "documents" I32[B*T] (only with
// ForwardOptions::documents; not in kGenerate), "last_rows" I32[B] (kGenerate:
// the row of each sequence whose logits are wanted).
struct ForwardResult {
  ValueId stats =
      kNone;  // F64[2]: sum of token losses, number of unmasked targets
  ValueId logits = kNone;  // kGenerate: [B, vocab], compute dtype; in the
                           // run-lifetime buffer "logits", which all phases of
                           // a graph share, and the graph's output "logits"
};

class Module {
 public:
  virtual ~Module() = default;

  const std::string& name() const { return name_; }  // full; "" is the root
  const std::string& class_name() const { return class_name_; }
  bool transparent() const {
    return transparent_;
  }  // groups children only: no name of its own, never a unit
  bool block() const { return block_; }  // a transformer block
  bool list() const { return list_; }    // ModuleList: never a unit
  bool feed_forward() const { return feed_forward_; }
  bool attention() const {
    return attention_;
  }  // an attention of the class "MultiheadAttention": a forced leaf of the
     // size-based policy, as in PyTorch (Hugging Face's attentions are none)
  const std::vector<std::unique_ptr<Module>>& children() const {
    return children_;
  }  // registration order
  const std::vector<const Parameter*>& parameters() const {
    return parameters_;
  }  // its own, tied ones included

 protected:
  friend class ModelFactory;

  std::string name_;
  std::string class_name_;
  bool transparent_ = false;
  bool block_ = false;
  bool list_ = false;
  bool feed_forward_ = false;
  bool attention_ = false;
  std::vector<std::unique_ptr<Module>> children_;
  std::vector<const Parameter*> parameters_;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const Module& root() const = 0;
  // Each once, in registration order of the first owner.
  virtual const std::vector<const Parameter*>& parameters() const = 0;
  // Other names of tied parameters: (alias, name) as in ("lm_head.weight",
  // "transformer.wte.weight").
  virtual const std::vector<std::pair<std::string, std::string>>& aliases()
      const = 0;
  // Parameters that are multiplied with the same input and are to lie side by
  // side, in that order: (q, k, v), (gate, up).
  virtual const std::vector<std::vector<const Parameter*>>& stacks() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_positions() const = 0;  // 0: no limit of its own
  int64_t numel() const;
  // Whether any parameter is one of an adapter.
  bool has_adapters() const;

  // Appends the forward nodes to the builder's current phase. Errors (a
  // sequence longer than the positions) name the field, the value and the
  // remedy.
  virtual absl::StatusOr<ForwardResult> Emit(
      GraphBuilder& builder, ParameterSource& source,
      const ForwardOptions& options) const = 0;
};

// Expands shorthands and checks everything: InvalidArgument naming the field
// path below `model`, the value, what is allowed and the remedy.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec);

// The module tree that a shorthand stands for; a composed spec is returned as
// it is, defaults filled in.
absl::StatusOr<ModuleSpec> ExpandModel(const ModelSpec& spec);

}  // namespace shardgraph

#endif  // GRAPH_MODEL_MODULE_H_
