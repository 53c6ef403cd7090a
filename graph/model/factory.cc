#include "graph/model/factory.h"

#include <algorithm>
#include <regex>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "graph/model/defaults.h"
#include "graph/model/fields.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

std::string JoinNames(absl::string_view parent, absl::string_view name) {
  if (parent.empty() || name.empty()) return absl::StrCat(parent, name);
  return absl::StrCat(parent, ".", name);
}

absl::Status CheckName(const ModuleSpec& spec, const std::string& path) {
  for (const char c : spec.name()) {
    if (absl::ascii_isalnum(c) || c == '_') continue;
    return BadField(absl::StrCat(path, ".name"),
                    absl::StrCat("\"", spec.name(), "\""),
                    "a module's own name has letters, digits and underscores "
                    "only; nest modules instead of writing dots");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> ModelFactory::MakeRoot(
    const ModuleSpec& spec, const std::string& path) {
  if (!spec.name().empty()) {
    return BadField(absl::StrCat(path, ".name"),
                    absl::StrCat("\"", spec.name(), "\""),
                    "the root has no name; remove it, or make it a child of a "
                    "sequential root");
  }
  LayerInfo info;
  info.class_name = spec.class_name();
  info.block = spec.block();
  SG_ASSIGN_OR_RETURN(std::unique_ptr<Layer> root,
                      Make(spec, std::move(info), path));
  if (stream_.kind != Stream::Kind::kLoss) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        " has no head: add one as the last module, for example head { "
        "vocab_size: 50257 width: 768 }"));
  }
  return root;
}

absl::Status ModelFactory::AddChild(Layer& parent, absl::string_view name,
                                    int index, const ModuleSpec& spec,
                                    const std::string& path) {
  SG_RETURN_IF_ERROR(CheckName(spec, path));
  LayerInfo info;
  info.name = JoinNames(parent.name(), name);
  info.class_name = spec.class_name();
  info.block = spec.block();
  info.transparent = name.empty();
  info.site =
      info.transparent ? absl::StrCat(parent.site(), "/", index) : info.name;
  if (info.transparent && info.block) {
    return BadField(absl::StrCat(path, ".block"), "true",
                    "a module without a name cannot be a unit; give it a name");
  }
  if (!info.transparent && !module_names_.insert(info.name).second) {
    return BadField(absl::StrCat(path, ".name"),
                    absl::StrCat("\"", spec.name(), "\""),
                    absl::StrCat("there is another module \"", info.name,
                                 "\"; choose a name of its own"));
  }
  SG_ASSIGN_OR_RETURN(std::unique_ptr<Layer> child,
                      Make(spec, std::move(info), path));
  if (!status_.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", status_.message()));
  }
  Own(parent, std::move(child));
  return absl::OkStatus();
}

const Parameter* ModelFactory::AddParameter(Layer& owner,
                                            absl::string_view name, Dims shape,
                                            Parameter::Init init, double std,
                                            bool adapter) {
  auto parameter = std::make_unique<Parameter>();
  parameter->name = JoinNames(owner.name(), name);
  parameter->shape = std::move(shape);
  parameter->init = init;
  parameter->std = std;
  parameter->adapter = adapter;
  Claim(parameter->name);
  const Parameter* result = parameter.get();
  parts_->owned.push_back(std::move(parameter));
  parts_->parameters.push_back(result);
  owner.parameters_.push_back(result);
  return result;
}

absl::Status ModelFactory::SetLora(const LoraSpec& spec) {
  lora_.emplace();
  lora_->rank = LoraRank(spec);
  lora_->scale = LoraScale(spec);
  SG_RETURN_IF_ERROR(CheckSize("model.lora.rank", lora_->rank));
  if (spec.has_alpha())
    SG_RETURN_IF_ERROR(CheckPositive("model.lora.alpha", spec.alpha()));
  SG_RETURN_IF_ERROR(CheckRate("model.lora.dropout", spec.dropout()));
  lora_->dropout = spec.dropout();
  if (spec.modules().empty()) {
    return absl::InvalidArgumentError(
        "model.lora.modules is empty; give a regular expression of whole names "
        "of linear modules, for example \".*(q_proj|v_proj)\"");
  }
  for (int i = 0; i < spec.modules_size(); ++i) {
    try {
      std::regex checked(spec.modules(i));
      lora_patterns_.push_back(spec.modules(i));
    } catch (const std::regex_error& error) {
      return BadField(absl::StrCat("model.lora.modules[", i, "]"),
                      absl::StrCat("\"", spec.modules(i), "\""),
                      absl::StrCat("is no regular expression: ", error.what()));
    }
  }
  lora_matched_.resize(lora_patterns_.size());
  return absl::OkStatus();
}

const Lora* ModelFactory::LoraOf(const std::string& name) {
  if (!lora_.has_value()) return nullptr;
  linear_names_.push_back(name);
  bool matches = false;
  for (size_t i = 0; i < lora_patterns_.size(); ++i) {
    if (!std::regex_match(name, std::regex(lora_patterns_[i]))) continue;
    lora_matched_[i] = matches = true;
  }
  return matches ? &*lora_ : nullptr;
}

absl::Status ModelFactory::CheckLoraUsed() const {
  for (size_t i = 0; i < lora_patterns_.size(); ++i) {
    if (lora_matched_[i]) continue;
    return BadField(
        absl::StrCat("model.lora.modules[", i, "]"),
        absl::StrCat("\"", lora_patterns_[i], "\""),
        linear_names_.empty()
            ? "the model has no linear modules"
            : absl::StrCat("matches no linear module; it must match whole "
                           "names such as \"",
                           linear_names_.front(), "\" or \"",
                           linear_names_.back(), "\""));
  }
  return absl::OkStatus();
}

void ModelFactory::ShareParameter(Layer& owner, absl::string_view name,
                                  const Parameter* parameter) {
  const std::string alias = JoinNames(owner.name(), name);
  Claim(alias);
  parts_->aliases.emplace_back(alias, parameter->name);
  owner.parameters_.push_back(parameter);
}

void ModelFactory::AddTable(const Layer& embedding, const Parameter* table) {
  if (!embedding.transparent()) tables_.emplace(embedding.name(), table);
}

const Parameter* ModelFactory::FindTable(absl::string_view name) const {
  const auto it = tables_.find(std::string(name));
  return it == tables_.end() ? nullptr : it->second;
}

std::vector<std::string> ModelFactory::TableNames() const {
  std::vector<std::string> names;
  for (const auto& [name, table] : tables_) names.push_back(name);
  return names;
}

void ModelFactory::AddStack(std::vector<const Parameter*> parameters) {
  parts_->stacks.push_back(std::move(parameters));
}

void ModelFactory::LimitPositions(int64_t positions, const std::string& path) {
  if (parts_->max_positions != 0 && parts_->max_positions <= positions) return;
  parts_->max_positions = positions;
  parts_->positions_field = path;
}

absl::Status ModelFactory::TakeActivations(const std::string& path,
                                           int64_t width) const {
  switch (stream_.kind) {
    case Stream::Kind::kTokens:
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          ": takes activations, but no embedding comes before it; put "
          "embedding { vocab_size: ... width: ",
          width, " } first"));
    case Stream::Kind::kLoss:
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": comes after the head; the head must be the last module"));
    case Stream::Kind::kActivations:
      break;
  }
  if (stream_.width == width) return absl::OkStatus();
  return BadField(
      path, width,
      absl::StrCat("the module before it gives activations of width ",
                   stream_.width, "; make both equal"));
}

LayerInfo ModelFactory::PartInfo(const Layer& parent, absl::string_view name,
                                 absl::string_view class_name) {
  LayerInfo info;
  info.name = JoinNames(parent.name(), name);
  info.class_name = std::string(class_name);
  info.site = absl::StrCat(parent.site(), ".", name);
  if (!module_names_.insert(info.name).second && status_.ok()) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("there is another module \"", info.name,
                     "\"; give the module that holds it a name"));
  }
  return info;
}

void ModelFactory::Own(Layer& parent, std::unique_ptr<Layer> child) {
  parent.children_.push_back(std::move(child));
}

void ModelFactory::Claim(const std::string& name) {
  if (parameter_names_.insert(name).second || !status_.ok()) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat("there is another parameter \"", name,
                   "\"; give the module a name of its own"));
}

absl::StatusOr<std::unique_ptr<Layer>> ModelFactory::Make(
    const ModuleSpec& spec, LayerInfo info, const std::string& path) {
  const auto field = [&](absl::string_view kind) {
    return absl::StrCat(path, ".", kind);
  };
  switch (spec.kind_case()) {
    case ModuleSpec::kSequential:
      return MakeSequential(spec.sequential(), std::move(info),
                            field("sequential"), *this);
    case ModuleSpec::kRepeat:
      return MakeRepeat(spec.repeat(), std::move(info), field("repeat"), *this);
    case ModuleSpec::kResidual:
      return MakeResidual(spec.residual(), std::move(info), field("residual"),
                          *this);
    case ModuleSpec::kEmbedding:
      return MakeEmbedding(spec.embedding(), std::move(info),
                           field("embedding"), *this);
    case ModuleSpec::kPositionEmbedding:
      return MakePositionEmbedding(spec.position_embedding(), std::move(info),
                                   field("position_embedding"), *this);
    case ModuleSpec::kLinear:
      return MakeLinear(spec.linear(), std::move(info), field("linear"), *this);
    case ModuleSpec::kLayerNorm:
      return MakeLayerNorm(spec.layer_norm(), std::move(info),
                           field("layer_norm"), *this);
    case ModuleSpec::kRmsNorm:
      return MakeRmsNorm(spec.rms_norm(), std::move(info), field("rms_norm"),
                         *this);
    case ModuleSpec::kAttention:
      return MakeAttention(spec.attention(), std::move(info),
                           field("attention"), *this);
    case ModuleSpec::kFeedForward:
      return MakeFeedForward(spec.feed_forward(), std::move(info),
                             field("feed_forward"), *this);
    case ModuleSpec::kDropout:
      return MakeDropout(spec.dropout(), std::move(info), field("dropout"),
                         *this);
    case ModuleSpec::kActivation:
      return MakeActivation(spec.activation(), std::move(info),
                            field("activation"), *this);
    case ModuleSpec::kHead:
      return MakeHead(spec.head(), std::move(info), field("head"), *this);
    case ModuleSpec::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      " has no kind: set one of sequential, repeat, residual, embedding, "
      "position_embedding, linear, layer_norm, rms_norm, attention, "
      "feed_forward, dropout, activation, head"));
}

}  // namespace shardgraph
