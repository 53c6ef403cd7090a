// GradientSlots: where the gradients of a phase's values are kept while
// Differentiate emits backward: one slot per forward buffer.
//
// A slot knows from the start which views (uses) of its buffer will contribute.
// From that follows how each contribution lands:
// - One use of the whole buffer: the contribution may be any value; an existing
//   one is taken as it is (no copy). It is shared until every slot that holds
//   it is done; only then is it accumulated into in place.
// - Several views, all apart: each is written straight into its view of one
//   gradient buffer; ranges that no use covers are filled with zero.
// - Views that overlap, or that leave out more than ranges: everything is
//   filled with zero first and every contribution accumulates.
//
// Accumulation in place makes a new version of the bytes. That is safe because
// a slot holds its buffer until its producers are differentiated, and nothing
// emitted later reads the gradient of a value whose producers are done.
#ifndef GRAPH_GRADIENT_SLOTS_H_
#define GRAPH_GRADIENT_SLOTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/graph.h"
#include "graph/region.h"

namespace shardgraph {

class GradientSlots {
 public:
  // `builder` outlives this.
  GradientSlots(GraphBuilder& builder, bool zero_unused);

  // --- Declarations, all of them before Plan ---------------------------------
  void AddBase(const GradientBase& base);
  // Values whose gradient is read at any later time.
  void AddLeaf(ValueId value);
  // `node` writes `value` and will be differentiated.
  void AddResult(ValueId value, NodeId node);
  // `value` is an operand to whose gradient some node will contribute.
  void AddUse(ValueId value);
  void Plan();

  // --- Emission --------------------------------------------------------------
  DType dtype(ValueId value) const;

  // Emits `op`; result r is a contribution to the gradient of targets[r]
  // (kNone: none; it is then placed at places[r], if there is such, else left
  // out where the op can do so).
  absl::InlinedVector<ValueId, 4> Emit(absl::string_view op,
                                       absl::Span<const ValueId> operands,
                                       Attributes attributes,
                                       absl::Span<const ValueId> targets,
                                       absl::Span<const Placement> places = {});

  // Takes `gradient` as a contribution to the gradient of `target`.
  void Contribute(ValueId target, ValueId gradient);

  // The gradient of `value`, all contributions being in; kNone when there was
  // none. For leaves and bases then an error naming the parameter, or zero.
  absl::Status Complete(ValueId value, ValueId* gradient);

  // One of the nodes declared for `value` by AddResult is differentiated.
  void ProducerDone(ValueId value, NodeId node);

 private:
  // A view through which contributions arrive.
  struct Use {
    Region region;
    bool overlaps = false;   // some other use
    bool onto_zero = false;  // every contribution accumulates
    bool contributed = false;
    ValueId value = kNone;  // what its bytes are, unless they overlap
  };
  // What is complete or not as one, in elements of the slot.
  struct Range {
    std::string name;
    int64_t begin = 0;
    int64_t end = 0;
    bool prefill = false;       // zero before the first contribution
    std::vector<Region> holes;  // to be zero, else: what no use covers
    bool filled = false;
  };
  struct Slot {
    BufferId forward = kNone;
    int64_t begin = 0;  // bytes of the forward buffer
    int64_t end = 0;
    int64_t element_bytes = 0;  // in forward
    DType dtype = DType::kF32;
    MemoryKind kind = MemoryKind::kActivation;
    int64_t alignment = 256;
    bool is_base = false;
    bool is_leaf = false;
    std::vector<NodeId> producers;  // to be differentiated
    std::vector<Use> uses;
    std::vector<Range> ranges;
    // Where the gradient is: element 0 at byte `origin`.
    BufferId buffer = kNone;
    int64_t origin = 0;
    bool adopted = false;  // it was somebody else's

    int64_t elements() const { return (end - begin) / element_bytes; }
  };

  Slot* Find(ValueId value);
  const Slot* Find(ValueId value) const;
  Slot& Declare(ValueId value);
  Region RegionOf(const Slot& slot, ValueId value) const;
  Use& UseOf(Slot& slot, ValueId value);
  // The type that the gradient of `value` has in its slot.
  TensorType TypeIn(const Slot& slot, ValueId value) const;
  Placement PlaceIn(const Slot& slot, ValueId value) const;
  ValueId CurrentIn(const Slot& slot, ValueId value);
  // Whether the slot may take over a value as its gradient.
  bool MayAdopt(const Slot& slot, const Use& use) const;
  // Whether its dtype may become that of the first contribution.
  bool AnyDType(const Slot& slot) const {
    return !slot.is_base && slot.producers.empty();
  }
  // Whether others may still read what the slot adopted. A buffer of its own is
  // only ever read where it is complete.
  bool Shared(const Slot& slot) const;
  void Hold(BufferId buffer);
  void Allocate(Slot& slot);  // also fills what has to be zero first
  ValueId Fill(const Slot& slot, int64_t offset, Dims shape, Dims strides);
  void Place(Slot& slot, BufferId buffer, int64_t origin);
  ValueId Cast(ValueId value, DType dtype, Placement place);
  ValueId AccumulateInPlace(const Slot& slot, ValueId target, ValueId gradient);

  GraphBuilder& builder_;
  const bool zero_unused_;
  const BufferId forward_buffers_;  // ids below are not ours to overwrite
  std::vector<Slot> slots_;
  std::vector<int32_t> slot_of_buffer_;  // by forward buffer; kNone
  std::vector<int32_t> holders_;         // by gradient buffer
};

}  // namespace shardgraph

#endif  // GRAPH_GRADIENT_SLOTS_H_
