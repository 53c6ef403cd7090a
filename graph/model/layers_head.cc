// Head: the loss of a language model, or its logits.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/model/factory.h"
#include "graph/model/fields.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// Rows of logits that cross_entropy_head holds at a time when nobody says, in
// chunks of about the same size. Each chunk reads the whole weight and updates
// its whole gradient: of rows / 4 FLOPs for each byte of that in FP32. Where
// matrix units outrun memory by 150 to 200 FLOPs a byte (AMX, Hopper), some
// 1,000 rows keep them busy, which these bytes hold of vocabularies of up to
// 128 k in BF16.
int64_t ChooseChunkRows(int64_t rows, int64_t vocab_size, DType dtype) {
  constexpr int64_t kBytes = 256 << 20;
  constexpr int64_t kLeast = 64;
  const auto divide_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  rows = std::max<int64_t>(rows, 1);
  const int64_t fitting =
      std::max(kLeast, kBytes / (vocab_size * SizeOf(dtype)) / kLeast * kLeast);
  const int64_t chunk = divide_up(rows, divide_up(rows, fitting));
  return std::min(divide_up(chunk, kLeast) * kLeast, rows);
}

class HeadLayer : public Layer {
 public:
  // `table`: shared with an embedding; null: one of its own.
  HeadLayer(LayerInfo info, ModelFactory& factory, const HeadSpec& spec,
            const Parameter* table)
      : Layer(std::move(info)), vocab_size_(spec.vocab_size()) {
    if (table != nullptr) {
      weight_ = table;
      factory.ShareParameter(*this, "weight", table);
    } else {
      weight_ = factory.AddParameter(
          *this, "weight", {spec.vocab_size(), spec.width()},
          Parameter::Init::kNormal, spec.init().std());
    }
  }

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override {
    return context.generating() ? EmitLogits(context, x) : EmitLoss(context, x);
  }

 private:
  ValueId EmitLoss(EmitContext& context, ValueId x) const {
    const int64_t rows = context.rows();
    const int64_t chunk =
        context.options.loss_chunk_rows > 0
            ? context.options.loss_chunk_rows
            : ChooseChunkRows(rows, vocab_size_, context.options.compute);
    const ValueId weight = context.source.Get(*weight_);
    Attributes attributes;
    attributes.SetInt("chunk_rows", chunk);
    const auto set = [&](absl::string_view name, double value) {
      if (value != 0) attributes.SetDouble(name, value);
    };
    set("label_smoothing", context.options.label_smoothing);
    set("z_loss", context.options.z_loss);
    context.result.stats = context.builder.Emit1(
        "cross_entropy_head",
        {x, weight, context.Input("targets", DType::kI32, rows)},
        std::move(attributes));
    return context.result.stats;
  }

  ValueId EmitLogits(EmitContext& context, ValueId x) const {
    GraphBuilder& builder = context.builder;
    const int64_t batch = context.options.batch;
    const ValueId last = builder.Emit1(
        "embedding", {context.Input("last_rows", DType::kI32, batch), x});
    const TensorType type(context.options.compute, {batch, vocab_size_});
    const std::string name = "logits";
    BufferId buffer = builder.graph().FindBuffer(name);
    if (buffer == kNone) {
      buffer = builder.AddBuffer({.name = name,
                                  .bytes = type.span_bytes(),
                                  .lifetime = Lifetime::kRun});
    }
    context.result.logits = builder.Emit1(
        "matmul", {last, context.source.Get(*weight_)},
        Attributes().SetInt("transpose_b", 1), Placement{buffer, 0, type});
    builder.graph().outputs[name] = context.result.logits;
    return context.result.logits;
  }

  int64_t vocab_size_;
  const Parameter* weight_;
};

}  // namespace

LayerOr MakeHead(const HeadSpec& spec, LayerInfo info, const std::string& path,
                 ModelFactory& factory) {
  const auto field = [&](absl::string_view name) {
    return absl::StrCat(path, ".", name);
  };
  SG_RETURN_IF_ERROR(CheckSize(field("vocab_size"), spec.vocab_size()));
  SG_RETURN_IF_ERROR(CheckSize(field("width"), spec.width()));
  SG_RETURN_IF_ERROR(CheckInit(field("init"), spec.init()));
  SG_RETURN_IF_ERROR(factory.TakeActivations(field("width"), spec.width()));
  if (spec.vocab_size() != factory.vocab_size()) {
    return BadField(
        field("vocab_size"), spec.vocab_size(),
        absl::StrCat("the embedding's is ", factory.vocab_size(),
                     "; inputs and targets are the same tokens, make both "
                     "equal"));
  }
  const Parameter* table = nullptr;
  if (!spec.tied_to().empty()) {
    table = factory.FindTable(spec.tied_to());
    if (table == nullptr) {
      return BadField(
          field("tied_to"), absl::StrCat("\"", spec.tied_to(), "\""),
          absl::StrCat("must be the full name of an embedding: [",
                       absl::StrJoin(factory.TableNames(), ", "), "]"));
    }
    if (table->shape != Dims{spec.vocab_size(), spec.width()}) {
      return BadField(
          field("tied_to"), absl::StrCat("\"", spec.tied_to(), "\""),
          absl::StrCat("its table is [", absl::StrJoin(table->shape, ", "),
                       "], the head needs [", spec.vocab_size(), ", ",
                       spec.width(), "]; make both equal, or untie the head"));
    }
  }
  factory.stream() = {Stream::Kind::kLoss, 0};
  return std::make_unique<HeadLayer>(std::move(info), factory, spec, table);
}

}  // namespace shardgraph
