// ModelFactory: makes the modules of one model from a checked walk over its
// spec, and one Make function per kind of module.
//
// The walk carries what flows between modules (Stream), so that every error
// names the field where the spec first goes wrong.
#ifndef GRAPH_MODEL_FACTORY_H_
#define GRAPH_MODEL_FACTORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/model/layer.h"
#include "graph/model/module.h"

namespace shardgraph {

// What a module is given and hands on.
struct Stream {
  enum class Kind : uint8_t { kTokens, kActivations, kLoss };
  Kind kind = Kind::kTokens;
  int64_t width = 0;  // of kActivations

  friend bool operator==(const Stream&, const Stream&) = default;
};

// Everything of a model but its modules.
struct ModelParts {
  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<const Parameter*> parameters;
  std::vector<std::pair<std::string, std::string>> aliases;
  std::vector<std::vector<const Parameter*>> stacks;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  std::string positions_field;   // of the spec: who limits the positions
  bool wants_positions = false;  // a layer reads EmitContext::positions
};

// LoraSpec, checked and with its defaults.
struct Lora {
  int64_t rank = 0;
  double scale = 1;  // alpha / rank
  double dropout = 0;
};

class ModelFactory {
 public:
  explicit ModelFactory(ModelParts* parts) : parts_(parts) {}

  // The root and everything below. `path` is the root's field path.
  absl::StatusOr<std::unique_ptr<Layer>> MakeRoot(const ModuleSpec& spec,
                                                  const std::string& path);

  // Before MakeRoot: adapters on the linear modules that a pattern matches; an
  // error names the field of `model.lora`. After it: whether each has matched.
  absl::Status SetLora(const LoraSpec& spec);
  absl::Status CheckLoraUsed() const;

  // --- For the Make functions.
  // The adapter of the linear module `name`; null: none.
  const Lora* LoraOf(const std::string& name);
  // Child number `index` of `parent`, of the given spec, under `name` (its own,
  // or its number in a list). Reads and advances stream().
  absl::Status AddChild(Layer& parent, absl::string_view name, int index,
                        const ModuleSpec& spec, const std::string& path);
  // A child that belongs to its parent's kind (q_proj of an attention): its
  // spec is sound, and no stream is checked.
  template <typename T, typename... Arguments>
  const T* AddPart(Layer& parent, absl::string_view name,
                   absl::string_view class_name, Arguments&&... arguments) {
    auto part = std::make_unique<T>(PartInfo(parent, name, class_name), *this,
                                    std::forward<Arguments>(arguments)...);
    const T* result = part.get();
    Own(parent, std::move(part));
    return result;
  }
  // A parameter "<owner's name>.<name>". A name that is taken is an error that
  // MakeRoot returns.
  const Parameter* AddParameter(Layer& owner, absl::string_view name,
                                Dims shape, Parameter::Init init,
                                double std = 0, bool adapter = false);
  // Lets `owner` share `parameter` under the name "<owner's name>.<name>".
  void ShareParameter(Layer& owner, absl::string_view name,
                      const Parameter* parameter);
  // An embedding's table under the embedding's full name, and the look-up for
  // heads that are tied to it; null when there is none.
  void AddTable(const Layer& embedding, const Parameter* table);
  const Parameter* FindTable(absl::string_view name) const;
  std::vector<std::string> TableNames() const;
  void AddStack(std::vector<const Parameter*> parameters);
  void SetVocabSize(int64_t size) { parts_->vocab_size = size; }
  int64_t vocab_size() const { return parts_->vocab_size; }
  // Sequences are at most `positions` long, as the field at `path` says.
  void LimitPositions(int64_t positions, const std::string& path);
  void WantPositions() { parts_->wants_positions = true; }

  Stream& stream() { return stream_; }
  // The stream is activations of `width`; `path` is the field that says so.
  absl::Status TakeActivations(const std::string& path, int64_t width) const;

 private:
  LayerInfo PartInfo(const Layer& parent, absl::string_view name,
                     absl::string_view class_name);
  static void Own(Layer& parent, std::unique_ptr<Layer> child);
  absl::StatusOr<std::unique_ptr<Layer>> Make(const ModuleSpec& spec,
                                              LayerInfo info,
                                              const std::string& path);
  void Claim(const std::string& name);

  ModelParts* parts_;
  Stream stream_;
  std::set<std::string> module_names_;
  std::set<std::string> parameter_names_;
  std::map<std::string, const Parameter*> tables_;
  std::optional<Lora> lora_;
  std::vector<std::string> lora_patterns_;
  std::vector<bool> lora_matched_;  // by pattern
  std::vector<std::string> linear_names_;
  absl::Status status_;  // the first error of the functions without one
};

using LayerOr = absl::StatusOr<std::unique_ptr<Layer>>;

// `path` is the field path of the kind: "model.module.sequential.children[2]
// .linear".
LayerOr MakeSequential(const SequentialSpec& spec, LayerInfo info,
                       const std::string& path, ModelFactory& factory);
LayerOr MakeRepeat(const RepeatSpec& spec, LayerInfo info,
                   const std::string& path, ModelFactory& factory);
LayerOr MakeResidual(const ResidualSpec& spec, LayerInfo info,
                     const std::string& path, ModelFactory& factory);
LayerOr MakeEmbedding(const EmbeddingSpec& spec, LayerInfo info,
                      const std::string& path, ModelFactory& factory);
LayerOr MakePositionEmbedding(const PositionEmbeddingSpec& spec, LayerInfo info,
                              const std::string& path, ModelFactory& factory);
LayerOr MakeLinear(const LinearSpec& spec, LayerInfo info,
                   const std::string& path, ModelFactory& factory);
LayerOr MakeLayerNorm(const LayerNormSpec& spec, LayerInfo info,
                      const std::string& path, ModelFactory& factory);
LayerOr MakeRmsNorm(const RmsNormSpec& spec, LayerInfo info,
                    const std::string& path, ModelFactory& factory);
LayerOr MakeAttention(const AttentionSpec& spec, LayerInfo info,
                      const std::string& path, ModelFactory& factory);
LayerOr MakeFeedForward(const FeedForwardSpec& spec, LayerInfo info,
                        const std::string& path, ModelFactory& factory);
LayerOr MakeDropout(const DropoutSpec& spec, LayerInfo info,
                    const std::string& path, ModelFactory& factory);
LayerOr MakeActivation(const ActivationSpec& spec, LayerInfo info,
                       const std::string& path, ModelFactory& factory);
LayerOr MakeHead(const HeadSpec& spec, LayerInfo info, const std::string& path,
                 ModelFactory& factory);

}  // namespace shardgraph

#endif  // GRAPH_MODEL_FACTORY_H_
