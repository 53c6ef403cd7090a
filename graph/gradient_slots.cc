#include "graph/gradient_slots.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/op.h"
#include "kernels/op_table.h"

namespace shardgraph {
namespace {

std::vector<int64_t> ToInts(const Dims& dims) {
  return std::vector<int64_t>(dims.begin(), dims.end());
}

bool Intersects(const Region& region, int64_t begin, int64_t end) {
  return region.offset < end && begin < region.end();
}

// What contiguous `parts` leave of [begin, end).
std::vector<Region> Holes(std::vector<Region> parts, int64_t begin,
                          int64_t end) {
  std::sort(parts.begin(), parts.end(), [](const Region& a, const Region& b) {
    return a.offset < b.offset;
  });
  std::vector<Region> holes;
  for (const Region& part : parts) {
    if (part.offset > begin) holes.push_back(Region::Range(begin, part.offset));
    begin = std::max(begin, part.end());
  }
  if (begin < end) holes.push_back(Region::Range(begin, end));
  return holes;
}

}  // namespace

GradientSlots::GradientSlots(GraphBuilder& builder, bool zero_unused)
    : builder_(builder),
      zero_unused_(zero_unused),
      forward_buffers_(static_cast<BufferId>(builder.graph().buffers.size())),
      slot_of_buffer_(forward_buffers_, kNone) {}

// --- Declarations -----------------------------------------------------------

GradientSlots::Slot* GradientSlots::Find(ValueId value) {
  const BufferId buffer = builder_.graph().values[value].buffer;
  if (buffer >= forward_buffers_ || slot_of_buffer_[buffer] == kNone)
    return nullptr;
  return &slots_[slot_of_buffer_[buffer]];
}

const GradientSlots::Slot* GradientSlots::Find(ValueId value) const {
  return const_cast<GradientSlots*>(this)->Find(value);
}

GradientSlots::Slot& GradientSlots::Declare(ValueId value) {
  const Value& v = builder_.graph().values[value];
  Slot* slot = Find(value);
  if (slot == nullptr) {
    slot_of_buffer_[v.buffer] = static_cast<int32_t>(slots_.size());
    slot = &slots_.emplace_back();
    slot->forward = v.buffer;
    slot->begin = v.begin();
    slot->end = v.end();
    slot->element_bytes = SizeOf(v.type.dtype);
    slot->dtype = v.type.dtype;
  }
  SG_CHECK_EQ(slot->element_bytes, SizeOf(v.type.dtype))
      << builder_.graph().buffers[v.buffer].name
      << " is used with several dtypes";
  if (slot->is_base) {
    SG_CHECK(slot->begin <= v.begin() && v.end() <= slot->end)
        << builder_.graph().buffers[v.buffer].name
        << " is used outside of its gradient base";
  } else {
    slot->begin = std::min(slot->begin, v.begin());
    slot->end = std::max(slot->end, v.end());
  }
  return *slot;
}

void GradientSlots::AddBase(const GradientBase& base) {
  SG_CHECK(Find(base.value) == nullptr) << "bases are declared first, once";
  Slot& slot = Declare(base.value);
  slot.is_base = true;
  slot.dtype = base.dtype;
  slot.kind = base.kind;
  slot.alignment = base.alignment;
  for (const GradientBase::Range& range : base.required) {
    slot.ranges.push_back(Range{.name = range.name,
                                .begin = range.offset,
                                .end = range.offset + range.elements});
  }
}

void GradientSlots::AddLeaf(ValueId value) { Declare(value).is_leaf = true; }

void GradientSlots::AddResult(ValueId value, NodeId node) {
  Slot& slot = Declare(value);
  if (std::find(slot.producers.begin(), slot.producers.end(), node) ==
      slot.producers.end()) {
    slot.producers.push_back(node);
  }
}

// Regions depend on the slot's final extent: until Plan they count from the
// start of the forward buffer.
void GradientSlots::AddUse(ValueId value) {
  Slot& slot = Declare(value);
  const Value& v = builder_.graph().values[value];
  SG_CHECK_EQ(v.offset % slot.element_bytes, 0);
  const Region region(v.offset / slot.element_bytes, v.type);
  SG_CHECK(!region.overlaps_itself())
      << "no gradient of a view that shows elements twice: "
      << v.type.ToString();
  for (const Use& use : slot.uses)
    if (use.region == region) return;
  slot.uses.push_back(Use{.region = region});
}

void GradientSlots::Plan() {
  for (Slot& slot : slots_) {
    for (Use& use : slot.uses)
      use.region.offset -= slot.begin / slot.element_bytes;
    if (slot.ranges.empty()) {
      slot.ranges.push_back(
          Range{.name = builder_.graph().buffers[slot.forward].name,
                .begin = 0,
                .end = slot.elements()});
    }
    for (size_t i = 0; i < slot.uses.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (Disjoint(slot.uses[i].region, slot.uses[j].region)) continue;
        slot.uses[i].overlaps = slot.uses[j].overlaps = true;
      }
    }
    for (Range& range : slot.ranges) {
      std::vector<Region> parts;
      bool contiguous = true;
      for (const Use& use : slot.uses) {
        if (!Intersects(use.region, range.begin, range.end)) continue;
        parts.push_back(use.region);
        contiguous &= use.region.contiguous();
        range.prefill |= use.overlaps;
      }
      if (parts.empty() || Covers(parts, range.begin, range.end)) continue;
      range.prefill |= !contiguous;
      range.holes = Holes(std::move(parts), range.begin, range.end);
    }
    // A use accumulates everywhere or nowhere.
    for (bool changed = true; changed;) {
      changed = false;
      for (Range& range : slot.ranges) {
        for (Use& use : slot.uses) {
          if (range.prefill == use.onto_zero ||
              !Intersects(use.region, range.begin, range.end)) {
            continue;
          }
          range.prefill = use.onto_zero = changed = true;
        }
      }
    }
  }
}

// --- Views of slots ---------------------------------------------------------

DType GradientSlots::dtype(ValueId value) const {
  const Slot* slot = Find(value);
  return slot == nullptr ? builder_.type(value).dtype : slot->dtype;
}

Region GradientSlots::RegionOf(const Slot& slot, ValueId value) const {
  const Value& v = builder_.graph().values[value];
  return Region((v.offset - slot.begin) / slot.element_bytes, v.type);
}

GradientSlots::Use& GradientSlots::UseOf(Slot& slot, ValueId value) {
  const Region region = RegionOf(slot, value);
  for (Use& use : slot.uses)
    if (use.region == region) return use;
  SG_CHECK(false) << "a contribution that was not declared, to "
                  << builder_.graph().buffers[slot.forward].name;
  return slot.uses[0];
}

TensorType GradientSlots::TypeIn(const Slot& slot, ValueId value) const {
  const TensorType& type = builder_.type(value);
  return TensorType(slot.dtype, type.shape, type.strides);
}

Placement GradientSlots::PlaceIn(const Slot& slot, ValueId value) const {
  return Placement{
      slot.buffer,
      slot.origin + RegionOf(slot, value).offset * SizeOf(slot.dtype),
      TypeIn(slot, value)};
}

ValueId GradientSlots::CurrentIn(const Slot& slot, ValueId value) {
  const Placement place = PlaceIn(slot, value);
  const Region region = RegionOf(slot, value);
  for (const Use& use : slot.uses) {
    if (use.value == kNone || use.overlaps || use.region != region) continue;
    if (builder_.type(use.value) == place.type) return use.value;
    return builder_.View(use.value, 0, place.type.shape, place.type.strides);
  }
  return builder_.Current(place.buffer, place.type, place.offset);
}

bool GradientSlots::MayAdopt(const Slot& slot, const Use& use) const {
  return slot.buffer == kNone && !slot.is_base && slot.uses.size() == 1 &&
         use.region == Region::Range(0, slot.elements());
}

// --- Storage ----------------------------------------------------------------

void GradientSlots::Hold(BufferId buffer) {
  if (static_cast<size_t>(buffer) >= holders_.size())
    holders_.resize(builder_.graph().buffers.size(), 0);
  ++holders_[buffer];
}

bool GradientSlots::Shared(const Slot& slot) const {
  return slot.adopted &&
         (slot.buffer < forward_buffers_ || holders_[slot.buffer] > 1);
}

void GradientSlots::Place(Slot& slot, BufferId buffer, int64_t origin) {
  if (slot.buffer != kNone) --holders_[slot.buffer];
  slot.buffer = buffer;
  slot.origin = origin;
  Hold(buffer);
}

void GradientSlots::Allocate(Slot& slot) {
  const bool first = slot.buffer == kNone;
  Buffer buffer;
  buffer.name =
      absl::StrCat(builder_.graph().buffers[slot.forward].name, ".gradient");
  buffer.bytes = slot.elements() * SizeOf(slot.dtype);
  buffer.alignment = slot.alignment;
  buffer.kind = slot.kind;
  Place(slot, builder_.AddBuffer(std::move(buffer)), 0);
  slot.adopted = false;
  if (!first) return;  // moved: the caller writes all of it
  for (Range& range : slot.ranges) {
    if (range.prefill) {
      Fill(slot, range.begin, {range.end - range.begin}, {1});
      range.filled = true;
    } else {
      for (const Region& hole : range.holes)
        Fill(slot, hole.offset, {hole.elements}, {1});
    }
  }
}

ValueId GradientSlots::Fill(const Slot& slot, int64_t offset, Dims shape,
                            Dims strides) {
  Attributes attributes;
  attributes.SetInts("shape", ToInts(shape));
  attributes.SetString("dtype", DTypeName(slot.dtype));
  return builder_.Emit1(
      "fill", {}, std::move(attributes),
      Placement{slot.buffer, slot.origin + offset * SizeOf(slot.dtype),
                TensorType(slot.dtype, shape, strides)});
}

ValueId GradientSlots::Cast(ValueId value, DType dtype, Placement place) {
  Attributes attributes;
  attributes.SetString("dtype", DTypeName(dtype));
  return builder_.Emit1("cast", {value}, std::move(attributes),
                        std::move(place));
}

ValueId GradientSlots::AccumulateInPlace(const Slot& slot, ValueId target,
                                         ValueId gradient) {
  Attributes attributes;
  attributes.SetString("dtype", DTypeName(slot.dtype));
  attributes.SetInt("accumulate", 1);
  return builder_.Emit1("cast", {gradient, CurrentIn(slot, target)},
                        std::move(attributes));
}

// --- Contributions ----------------------------------------------------------

void GradientSlots::Contribute(ValueId target, ValueId gradient) {
  Slot& slot = *Find(target);
  Use& use = UseOf(slot, target);
  const TensorType type = builder_.type(gradient);
  SG_CHECK(type.shape == builder_.type(target).shape)
      << "a gradient " << type.ToString() << " for "
      << builder_.type(target).ToString();
  const bool first = !use.contributed && !use.onto_zero;
  use.contributed = true;
  if (first && MayAdopt(slot, use) && type.contiguous() &&
      (type.dtype == slot.dtype || AnyDType(slot))) {
    slot.dtype = type.dtype;
    const Value& value = builder_.graph().values[gradient];
    Place(slot, value.buffer, value.offset);
    slot.adopted = true;
    use.value = gradient;
    return;
  }
  if (slot.buffer == kNone) Allocate(slot);
  if (first) {
    use.value = Cast(gradient, slot.dtype, PlaceIn(slot, target));
  } else if (Shared(slot)) {
    const ValueId old = CurrentIn(slot, target);
    if (type.dtype != slot.dtype) gradient = Cast(gradient, slot.dtype, {});
    Allocate(slot);
    use.value =
        builder_.Emit1("add", {old, gradient}, {}, PlaceIn(slot, target));
  } else {
    use.value = AccumulateInPlace(slot, target, gradient);
  }
}

absl::InlinedVector<ValueId, 4> GradientSlots::Emit(
    absl::string_view op_name, absl::Span<const ValueId> given,
    Attributes attributes, absl::Span<const ValueId> targets,
    absl::Span<const Placement> places) {
  const OpDef* op = FindOp(op_name);
  SG_CHECK(op != nullptr) << "there is no op " << std::string(op_name);
  absl::InlinedVector<ValueId, 8> operands(given.begin(), given.end());
  std::vector<TensorType> types, result_types;
  for (size_t i = 0; i < operands.size(); ++i) {
    TensorType type = builder_.type(operands[i]);
    if (!type.contiguous() &&
        (op->strided_operands >> std::min<size_t>(i, 31) & 1) == 0) {
      operands[i] = Cast(operands[i], type.dtype, {});
      type = builder_.type(operands[i]);
    }
    types.push_back(std::move(type));
  }
  // What is no contribution and has no place is wanted by nobody.
  int64_t omit = 0;
  for (size_t r = 0; r < std::max(targets.size(), places.size()); ++r) {
    const bool is_wanted = (r < targets.size() && targets[r] != kNone) ||
                           (r < places.size() && places[r].buffer != kNone);
    if (!is_wanted && (op->optional_results >> r & 1) != 0)
      omit |= int64_t{1} << r;
  }
  if (omit != 0) attributes.SetInt("omit", omit);
  const absl::Status inferred =
      InferResults(*op, attributes, types, &result_types);
  SG_CHECK(inferred.ok()) << std::string(inferred.message()) << "; in "
                          << std::string(builder_.scope());

  // How each result lands. `kMove`: the slot's gradient is shared, so the
  // result goes to a new buffer and the old gradient is added to it.
  enum class How { kNothing, kWrite, kAccumulate, kMove, kDetached };
  struct Landing {
    How how = How::kNothing;
    ValueId old = kNone;  // kMove
  };
  std::vector<Landing> landings(result_types.size());
  std::vector<Placement> placements(result_types.size());
  uint64_t accumulate = 0;
  for (size_t r = 0; r < result_types.size(); ++r) {
    const ValueId target = r < targets.size() ? targets[r] : kNone;
    if (target == kNone) {
      if (r < places.size()) placements[r] = places[r];
      continue;
    }
    Slot& slot = *Find(target);
    Use& use = UseOf(slot, target);
    SG_CHECK(result_types[r].shape == builder_.type(target).shape)
        << std::string(op_name) << " gives " << result_types[r].ToString()
        << " for the gradient of " << builder_.type(target).ToString();
    if (MayAdopt(slot, use) && AnyDType(slot))
      slot.dtype = result_types[r].dtype;
    // Another result of this node may go to the same elements.
    bool apart = true;
    for (size_t s = 0; s < r; ++s) {
      apart &= landings[s].how == How::kNothing || Find(targets[s]) != &slot ||
               Disjoint(RegionOf(slot, targets[s]), use.region);
    }
    const bool dense = TypeIn(slot, target).contiguous();
    const size_t tied = operands.size() + std::popcount(accumulate);
    const bool writes = apart && result_types[r].dtype == slot.dtype &&
                        (dense || (op->strided_results >> r & 1) != 0);
    const bool accumulates =
        (op->accumulates >> r & 1) != 0 &&
        (dense ||
         (op->strided_operands >> std::min<size_t>(tied, 31) & 1) != 0);
    Landing& landing = landings[r];
    if (!writes) {
      landing.how = How::kDetached;
    } else if (!use.contributed && !use.onto_zero) {
      landing.how = How::kWrite;
      if (slot.buffer == kNone) Allocate(slot);
      placements[r] = PlaceIn(slot, target);
    } else if (Shared(slot)) {
      landing.how = How::kMove;
      landing.old = CurrentIn(slot, target);
      Allocate(slot);
      placements[r] = PlaceIn(slot, target);
    } else if (accumulates) {
      landing.how = How::kAccumulate;
      if (slot.buffer == kNone) Allocate(slot);
      accumulate |= uint64_t{1} << r;
    } else {
      landing.how = How::kDetached;
    }
  }
  if (accumulate != 0) {
    attributes.SetInt("accumulate", static_cast<int64_t>(accumulate));
    for (size_t r = 0; r < landings.size(); ++r) {
      if (landings[r].how == How::kAccumulate)
        operands.push_back(CurrentIn(*Find(targets[r]), targets[r]));
    }
  }
  const absl::InlinedVector<ValueId, 4> results =
      builder_.Emit(op_name, operands, std::move(attributes), placements);
  for (size_t r = 0; r < landings.size(); ++r) {
    if (landings[r].how == How::kNothing) continue;
    Slot& slot = *Find(targets[r]);
    if (landings[r].how == How::kDetached) {
      Contribute(targets[r], results[r]);
      continue;
    }
    Use& use = UseOf(slot, targets[r]);
    use.contributed = true;
    use.value = results[r];
    if (landings[r].how == How::kMove)
      use.value = AccumulateInPlace(slot, targets[r], landings[r].old);
  }
  return results;
}

absl::Status GradientSlots::Complete(ValueId value, ValueId* gradient) {
  *gradient = kNone;
  Slot* slot = Find(value);
  if (slot == nullptr) return absl::OkStatus();
  const Region region = RegionOf(*slot, value);
  const bool wanted = slot->is_base || slot->is_leaf;
  bool any = false;
  std::vector<Range*> missing;
  for (Range& range : slot->ranges) {
    if (!Intersects(region, range.begin, range.end)) continue;
    bool contributed = range.filled && !range.prefill;
    for (const Use& use : slot->uses) {
      contributed |=
          use.contributed && Intersects(use.region, range.begin, range.end);
    }
    if (!contributed) {
      missing.push_back(&range);
      continue;
    }
    any = true;
    // Uses that could have contributed but did not.
    for (Use& use : slot->uses) {
      if (use.contributed || range.prefill ||
          !Intersects(use.region, range.begin, range.end)) {
        continue;
      }
      Dims shape, strides;
      for (const Region::Dim& dim : use.region.dims) {
        shape.push_back(dim.size);
        strides.push_back(dim.stride);
      }
      use.value = Fill(*slot, use.region.offset, shape, strides);
      use.contributed = true;
    }
  }
  if (!any && !wanted) return absl::OkStatus();
  if (!missing.empty() && wanted && !zero_unused_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter ", missing[0]->name,
        " gets no gradient: nothing that the loss depends on uses it; freeze "
        "it, take it out of the model, or allow it (optimizer.allow_unused) to "
        "train with a gradient of zero"));
  }
  if (slot->buffer == kNone) Allocate(*slot);
  for (Range* range : missing) {
    if (range->filled) continue;
    Fill(*slot, range->begin, {range->end - range->begin}, {1});
    range->filled = true;
  }
  *gradient = CurrentIn(*slot, value);
  return absl::OkStatus();
}

void GradientSlots::ProducerDone(ValueId value, NodeId node) {
  Slot* slot = Find(value);
  if (slot == nullptr) return;
  const auto it =
      std::find(slot->producers.begin(), slot->producers.end(), node);
  if (it == slot->producers.end()) return;
  slot->producers.erase(it);
  // What a leaf's consumer was given stays as it is.
  if (slot->producers.empty() && !slot->is_leaf && slot->buffer != kNone)
    --holders_[slot->buffer];
}

}  // namespace shardgraph
