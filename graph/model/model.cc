#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/model/defaults.h"
#include "graph/model/expand.h"
#include "graph/model/factory.h"
#include "graph/model/fields.h"
#include "graph/model/layer.h"
#include "graph/model/module.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

class TreeModel : public Model {
 public:
  TreeModel(ModelParts parts, std::unique_ptr<Layer> root)
      : parts_(std::move(parts)), root_(std::move(root)) {}

  const Module& root() const override { return *root_; }
  const std::vector<const Parameter*>& parameters() const override {
    return parts_.parameters;
  }
  const std::vector<std::pair<std::string, std::string>>& aliases()
      const override {
    return parts_.aliases;
  }
  const std::vector<std::vector<const Parameter*>>& stacks() const override {
    return parts_.stacks;
  }
  int64_t vocab_size() const override { return parts_.vocab_size; }
  int64_t max_positions() const override { return parts_.max_positions; }

  absl::StatusOr<ForwardResult> Emit(
      GraphBuilder& builder, ParameterSource& source,
      const ForwardOptions& options) const override {
    SG_RETURN_IF_ERROR(Check(options));
    EmitContext context{
        .builder = builder, .source = source, .options = options};
    const std::string outer(builder.scope());
    builder.SetScope(root_->name());
    const ValueId tokens = context.Input("tokens", DType::kI32, context.rows());
    if (parts_.wants_positions) {
      context.positions = builder.Emit1("positions", {context.Position()},
                                        Attributes()
                                            .SetInt("batch", options.batch)
                                            .SetInt("length", options.length));
    }
    root_->Run(context, tokens);
    builder.SetScope(outer);
    return context.result;
  }

 private:
  absl::Status Check(const ForwardOptions& options) const {
    SG_RETURN_IF_ERROR(CheckSize("batch", options.batch));
    SG_RETURN_IF_ERROR(CheckSize("sequence length", options.length));
    if (options.batch * options.length > kMaxSize) {
      return BadField("batch", options.batch,
                      absl::StrCat("times a sequence length of ",
                                   options.length, " must be at most ",
                                   kMaxSize, "; use smaller micro-batches"));
    }
    SG_RETURN_IF_ERROR(CheckPositions("sequence length", options.length));
    if (options.mode != ForwardMode::kGenerate) return absl::OkStatus();
    if (options.cache_length < options.length) {
      return BadField("cache length", options.cache_length,
                      absl::StrCat("must hold the ", options.length,
                                   " tokens of a sequence"));
    }
    return CheckPositions("cache length", options.cache_length);
  }

  absl::Status CheckPositions(absl::string_view what, int64_t length) const {
    if (parts_.max_positions == 0 || length <= parts_.max_positions) {
      return absl::OkStatus();
    }
    return BadField(
        what, length,
        absl::StrCat(
            "the model has ", parts_.max_positions, " positions (",
            parts_.positions_field,
            "); use shorter sequences or a model with more positions"));
  }

  ModelParts parts_;
  std::unique_ptr<Layer> root_;
};

// What errors call the spec's root and the field that limits the positions
// (empty: as the factory found it).
struct FieldNames {
  const char* root;
  const char* positions;
};

FieldNames NamesOf(const ModelSpec& spec) {
  switch (spec.kind_case()) {
    case ModelSpec::kGpt2:
      return {"model.gpt2", "model.gpt2.n_positions"};
    case ModelSpec::kLlama:
      return {"model.llama", "model.llama.max_position_embeddings"};
    default:
      return {"model.module", ""};
  }
}

}  // namespace

int64_t Model::numel() const {
  int64_t total = 0;
  for (const Parameter* parameter : parameters()) total += parameter->numel();
  return total;
}

bool Model::has_adapters() const {
  return std::any_of(parameters().begin(), parameters().end(),
                     [](const Parameter* p) { return p->adapter; });
}

absl::StatusOr<ModuleSpec> ExpandModel(const ModelSpec& spec) {
  ModuleSpec module;
  switch (spec.kind_case()) {
    case ModelSpec::kGpt2: {
      SG_ASSIGN_OR_RETURN(module, ExpandGpt2(spec.gpt2()));
      break;
    }
    case ModelSpec::kLlama: {
      SG_ASSIGN_OR_RETURN(module, ExpandLlama(spec.llama()));
      break;
    }
    case ModelSpec::kModule:
      module = spec.module();
      break;
    case ModelSpec::KIND_NOT_SET:
      return absl::InvalidArgumentError(
          "model is empty: set one of model.gpt2, model.llama, model.module, "
          "or "
          "start from a preset");
  }
  FillDefaults(&module);
  return module;
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec) {
  SG_ASSIGN_OR_RETURN(const ModuleSpec module, ExpandModel(spec));
  ModelParts parts;
  ModelFactory factory(&parts);
  if (spec.has_lora()) SG_RETURN_IF_ERROR(factory.SetLora(spec.lora()));
  const FieldNames names = NamesOf(spec);
  SG_ASSIGN_OR_RETURN(std::unique_ptr<Layer> root,
                      factory.MakeRoot(module, names.root));
  SG_RETURN_IF_ERROR(factory.CheckLoraUsed());
  if (names.positions[0] != 0) parts.positions_field = names.positions;
  return std::make_unique<TreeModel>(std::move(parts), std::move(root));
}

}  // namespace shardgraph
