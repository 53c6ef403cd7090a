#include "graph/test_graph.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

const OpDef* ComputeOp() {
  static const OpDef* const op = [] {
    OpDef* op = new OpDef;
    op->name = "compute";
    op->accumulates = ~0u;
    op->cost = [](const Attributes& attributes, absl::Span<const TensorType>,
                  absl::Span<const TensorType>) {
      OpCost cost;
      cost.matmul_flops = attributes.Double("flops");
      return cost;
    };
    return op;
  }();
  return op;
}

}  // namespace

TestGraph::TestGraph(int32_t world) {
  graph_.groups.push_back({"world", world, 1});
  graph_.scopes.push_back("");
}

void TestGraph::SetPhase(absl::string_view name) {
  phase_ = graph_.FindPhase(name);
  if (phase_ != kNone) return;
  phase_ = static_cast<PhaseId>(graph_.phases.size());
  graph_.phases.push_back({std::string(name), {}});
}

void TestGraph::SetUnit(absl::string_view name) {
  for (size_t i = 0; i < graph_.units.size(); ++i) {
    unit_ = static_cast<UnitId>(i);
    if (graph_.units[i].name == name) return;
  }
  graph_.units.push_back({std::string(name)});
  graph_.scopes.push_back(std::string(name));
  unit_ = static_cast<UnitId>(graph_.units.size() - 1);
}

BufferId TestGraph::AddBuffer(absl::string_view name, int64_t elements,
                              Lifetime lifetime, MemoryKind kind) {
  Buffer buffer;
  buffer.name = std::string(name);
  buffer.bytes = elements * 4;
  buffer.lifetime = lifetime;
  buffer.kind = kind;
  graph_.buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(graph_.buffers.size() - 1);
}

ValueId TestGraph::View(BufferId buffer, int64_t begin, int64_t elements) {
  if (elements < 0) elements = graph_.buffers[buffer].bytes / 4 - begin;
  Value value;
  value.buffer = buffer;
  value.offset = begin * 4;
  value.type = TensorType(DType::kF32, {elements});
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size() - 1);
}

NodeId TestGraph::Compute(const std::vector<BufferId>& reads,
                          const std::vector<BufferId>& writes) {
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  for (BufferId buffer : reads) operands.push_back(View(buffer));
  for (BufferId buffer : writes) results.push_back(View(buffer));
  return Add("compute", operands, results);
}

NodeId TestGraph::Add(absl::string_view op,
                      const std::vector<ValueId>& operands,
                      const std::vector<ValueId>& results,
                      Attributes attributes, LaneKind lane) {
  SG_CHECK(phase_ != kNone);
  Node node;
  node.op = op == "compute" ? ComputeOp() : FindOp(op);
  SG_CHECK(node.op != nullptr) << std::string(op);
  node.attributes = std::move(attributes);
  node.operands.assign(operands.begin(), operands.end());
  node.results.assign(results.begin(), results.end());
  node.scope = unit_ + 1;
  node.unit = unit_;
  node.phase = phase_;
  node.direction = direction_;
  node.lane = lane;
  const NodeId id = static_cast<NodeId>(graph_.nodes.size());
  for (ValueId result : results) graph_.values[result].producer = id;
  graph_.nodes.push_back(std::move(node));
  graph_.phases[phase_].nodes.push_back(id);
  return id;
}

NodeId TestGraph::Gather(BufferId shard, BufferId full) {
  const ValueId operand = View(shard);
  return Add("all_gather", {operand}, {View(full)},
             Attributes()
                 .SetString("group", "world")
                 .SetInt("size", graph_.groups[0].size),
             LaneKind::kGather);
}

NodeId TestGraph::ReduceScatter(BufferId full, BufferId shard) {
  const ValueId operand = View(full);
  return Add("reduce_scatter", {operand}, {View(shard)},
             Attributes()
                 .SetString("group", "world")
                 .SetInt("size", graph_.groups[0].size),
             LaneKind::kReduce);
}

NodeId TestGraph::Accumulate(BufferId destination, BufferId contribution) {
  BufferId state = graph_.FindBuffer("step_state");
  if (state == kNone)
    state = AddBuffer("step_state", 64, Lifetime::kRun, MemoryKind::kState);
  const ValueId micro = View(state, 0, 2);
  graph_.values[micro].type = TensorType(DType::kI64, {});
  return Add("accumulate", {View(destination), View(contribution), micro},
             {View(destination)}, {}, LaneKind::kReduce);
}

NodeId TestGraph::Sgd(BufferId master, BufferId gradient,
                      std::vector<int64_t> segments) {
  return Add("sgd", {View(master), View(gradient)}, {View(master)},
             Attributes()
                 .SetString("group", "world")
                 .SetInts("segments", std::move(segments)));
}

TestGraph MakeModel(const TestModel& model) {
  TestGraph test(model.world);
  const auto shard = [&](absl::string_view name, absl::string_view what,
                         Lifetime lifetime, MemoryKind kind) {
    return test.AddBuffer(absl::StrCat(name, "/", what),
                          model.parameters / model.world, lifetime, kind);
  };
  struct Unit {
    std::string name;
    BufferId master, compute, gradient;
  };
  std::vector<Unit> units;
  for (int u = 0; u <= model.layers; ++u) {
    Unit unit;
    unit.name = u == 0 ? "root" : absl::StrCat("layers.", u - 1);
    unit.master = shard(unit.name, "master", Lifetime::kRun,
                        MemoryKind::kMasterParameter);
    unit.compute = shard(unit.name, "compute", Lifetime::kRun,
                         MemoryKind::kComputeParameter);
    unit.gradient = shard(unit.name, "gradient_shard", Lifetime::kStep,
                          MemoryKind::kGradientShard);
    units.push_back(unit);
  }
  const BufferId tokens =
      test.AddBuffer("input/tokens", 64, Lifetime::kRun, MemoryKind::kInput);
  const auto full = [&](const Unit& unit, absl::string_view what,
                        MemoryKind kind) {
    return test.AddBuffer(absl::StrCat(unit.name, "/", what), model.parameters,
                          Lifetime::kPhase, kind);
  };
  const auto gather = [&](const Unit& unit) {
    test.SetUnit(unit.name);
    const BufferId gathered =
        full(unit, "gathered", MemoryKind::kGatheredParameter);
    test.Gather(unit.compute, gathered);
    return gathered;
  };
  // Everything but the padding, as a view.
  const auto data = [&](BufferId buffer) {
    return test.View(buffer, 0, model.parameters - model.padding);
  };
  const auto activation = [&](absl::string_view name, int64_t scale = 1) {
    return test.AddBuffer(name, model.activation * scale);
  };

  test.SetPhase("micro");
  const BufferId root = gather(units[0]);
  BufferId x = activation("embedding");
  test.Add("compute", {test.View(tokens), data(root)}, {test.View(x)});
  std::vector<std::vector<BufferId>> saved(model.layers + 1);
  BufferId gathered = kNone;
  for (int l = 1; l <= model.layers; ++l) {
    gathered = gather(units[l]);
    for (int i = 0; i < model.nodes_per_layer; ++i) {
      // Wider in the middle of a layer, as a feed-forward is.
      const BufferId y =
          activation(absl::StrCat(units[l].name, "/y", i), i % 4 == 2 ? 4 : 1);
      test.Add("compute", {test.View(x), data(gathered)}, {test.View(y)});
      saved[l].push_back(x);
      x = y;
    }
  }
  test.SetUnit(units[0].name);
  test.SetDirection(Direction::kBackward);
  const BufferId root_gradient =
      full(units[0], "gradient", MemoryKind::kGradient);
  BufferId dx = activation("head/dx");
  test.Add("compute", {test.View(x), data(root)},
           {test.View(dx), data(root_gradient)});
  for (int l = model.layers; l >= 1; --l) {
    if (l < model.layers) {
      test.SetDirection(Direction::kRecompute);
      gathered = gather(units[l]);
      test.SetDirection(Direction::kBackward);
    }
    test.SetUnit(units[l].name);
    const BufferId gradient = full(units[l], "gradient", MemoryKind::kGradient);
    const int64_t members = model.nodes_per_layer;
    const int64_t member = (model.parameters - model.padding) / members;
    for (int i = model.nodes_per_layer - 1; i >= 0; --i) {
      const BufferId dy = dx;
      const BufferId input = saved[l][i];
      test.Add("compute", {test.View(dy), test.View(input)},
               {test.View(gradient, i * member,
                          i + 1 == members
                              ? model.parameters - model.padding - i * member
                              : member)});
      dx = test.AddBuffer(absl::StrCat(units[l].name, "/dx", i),
                          test.graph().buffers[input].bytes / 4);
      test.Add("compute", {test.View(dy), data(gathered)}, {test.View(dx)});
    }
    const BufferId stage = shard(units[l].name, "stage", Lifetime::kPhase,
                                 MemoryKind::kReduceStage);
    test.ReduceScatter(gradient, stage);
    test.Accumulate(units[l].gradient, stage);
  }
  test.SetUnit(units[0].name);
  const ValueId old = data(root_gradient);
  test.Add("compute", {test.View(dx), test.View(tokens), old},
           {data(root_gradient)}, Attributes().SetInt("accumulate", 1));
  const BufferId stage =
      shard(units[0].name, "stage", Lifetime::kPhase, MemoryKind::kReduceStage);
  test.ReduceScatter(root_gradient, stage);
  test.Accumulate(units[0].gradient, stage);

  test.SetPhase("update");
  test.SetDirection(Direction::kUpdate);
  for (const Unit& unit : units) {
    test.SetUnit(unit.name);
    test.Sgd(unit.master, unit.gradient,
             {0, model.parameters - model.padding, 0});
    test.Compute({unit.master}, {unit.compute});
  }
  return test;
}

namespace {

// Draws one phase of a random graph.
class PhaseMaker {
 public:
  PhaseMaker(TestGraph* test, std::mt19937_64* random,
             const std::vector<BufferId>& persistent)
      : test_(*test), random_(*random), persistent_(persistent) {
    for (BufferId buffer : persistent)
      readable_.push_back({buffer, 0, Elements(buffer), true});
  }

  void Make(int nodes) {
    for (int i = 0; i < nodes; ++i) {
      test_.SetUnit(absl::StrCat("unit", i * 5 / nodes));
      const int kind = Draw(0, 9);
      if (kind == 0) {
        Collective("all_gather", LaneKind::kGather);
      } else if (kind == 1) {
        Collective("reduce_scatter", LaneKind::kReduce);
      } else if (kind == 2) {
        Accumulate();
      } else if (kind == 3) {
        Parts();
      } else {
        Plain(kind == 4   ? LaneKind::kCopy
              : kind == 5 ? LaneKind::kReduce
                          : LaneKind::kCompute);
      }
    }
    // Nothing stays unread.
    std::vector<ValueId> rest;
    for (const Range& range : readable_) {
      if (!range.read)
        rest.push_back(test_.View(range.buffer, range.begin, range.elements));
    }
    const ValueId sink = test_.View(persistent_[0]);
    rest.push_back(sink);
    test_.Add("compute", rest, {test_.View(persistent_[0])},
              Attributes().SetInt("accumulate", 1));
  }

 private:
  struct Range {
    BufferId buffer;
    int64_t begin;
    int64_t elements;
    bool read;
  };

  int Draw(int low, int high) {
    return low + static_cast<int>(random_() % (high - low + 1));
  }
  int64_t Elements(BufferId buffer) {
    return test_.graph().buffers[buffer].bytes / 4;
  }
  BufferId Fresh(int64_t elements) {
    return test_.AddBuffer(absl::StrCat("t", test_.graph().buffers.size()),
                           elements);
  }
  int64_t Size() {
    return 128 * static_cast<int64_t>(std::exp2(Draw(0, 80) / 10.0));
  }
  // A range that was written; recent ones more often.
  Range& Pick() {
    const int last = static_cast<int>(readable_.size()) - 1;
    Range& range = readable_[Draw(0, 1) ? Draw(std::max(0, last - 5), last)
                                        : Draw(0, last)];
    range.read = true;
    return range;
  }
  ValueId PickView() {
    const Range& range = Pick();
    if (Draw(0, 3) > 0)
      return test_.View(range.buffer, range.begin, range.elements);
    return test_.View(range.buffer, range.begin + range.elements / 4,
                      range.elements / 2);
  }
  std::vector<ValueId> Operands() {
    std::vector<ValueId> operands;
    for (int n = Draw(1, 3); n > 0; --n) operands.push_back(PickView());
    return operands;
  }
  void Written(BufferId buffer) {
    readable_.push_back({buffer, 0, Elements(buffer), false});
  }

  void Plain(LaneKind lane) {
    std::vector<ValueId> operands = Operands();
    std::vector<ValueId> results;
    std::vector<BufferId> fresh;
    for (int n = Draw(1, 2); n > 0; --n) {
      fresh.push_back(Fresh(Size()));
      results.push_back(test_.View(fresh.back()));
    }
    test_.Add("compute", operands, results, {}, lane);
    for (BufferId buffer : fresh) Written(buffer);
  }
  // A buffer that two nodes write, half each.
  void Parts() {
    const BufferId buffer = Fresh(2 * Size());
    const int64_t half = Elements(buffer) / 2;
    for (const int64_t begin : {int64_t{0}, half})
      test_.Add("compute", Operands(), {test_.View(buffer, begin, half)});
    Written(buffer);
  }
  void Accumulate() {
    std::vector<ValueId> operands = Operands();
    Range& range = Pick();
    operands.push_back(test_.View(range.buffer, range.begin, range.elements));
    test_.Add("compute", operands,
              {test_.View(range.buffer, range.begin, range.elements)},
              Attributes().SetInt("accumulate", 1));
    range.read = false;
  }
  void Collective(absl::string_view op, LaneKind lane) {
    const Range& range = Pick();
    const int64_t world = test_.graph().groups[0].size;
    const int64_t elements = range.elements / world * world;
    const BufferId result =
        Fresh(lane == LaneKind::kGather ? elements * world : elements / world);
    test_.Add(op, {test_.View(range.buffer, range.begin, elements)},
              {test_.View(result)},
              Attributes().SetString("group", "world").SetInt("size", world),
              lane);
    Written(result);
  }

  TestGraph& test_;
  std::mt19937_64& random_;
  const std::vector<BufferId>& persistent_;
  std::vector<Range> readable_;
};

}  // namespace

TestGraph RandomGraph(uint64_t seed) {
  std::mt19937_64 random(seed);
  TestGraph test(2);
  std::vector<BufferId> persistent;
  for (uint64_t n = 1 + random() % 5; n > 0; --n) {
    persistent.push_back(test.AddBuffer(
        absl::StrCat("p", n), 128 * (1 + random() % 8), Lifetime::kRun));
  }
  const uint64_t phases = 1 + random() % 3;
  for (uint64_t p = 0; p < phases; ++p) {
    test.SetPhase(absl::StrCat("phase", p));
    PhaseMaker(&test, &random, persistent)
        .Make(1 + static_cast<int>(random() % 60));
  }
  return test;
}

StepPlan RandomPlan(uint64_t seed) {
  ScheduleOptions options;
  options.prefetch = static_cast<int>(seed % 4);
  options.max_units_in_flight =
      options.prefetch + 1 + static_cast<int>(seed / 4 % 2);
  return MakePlan(RandomGraph(seed).graph(),
                  1 + static_cast<int>(seed % 3) + static_cast<int>(seed % 2),
                  options);
}

StepPlan MakePlan(const Graph& graph, int lanes,
                  const ScheduleOptions& options) {
  TargetSpec target;
  target.set_name("test");
  target.set_lanes(lanes);
  StepPlan plan;
  plan.graph = graph;
  plan.target = target.name();
  plan.num_lanes = lanes;
  auto schedules = Schedule(graph, target, options);
  SG_CHECK_OK(schedules);
  plan.schedules = *std::move(schedules);
  auto memory = PlanMemory(graph, plan.schedules);
  SG_CHECK_OK(memory);
  plan.memory = *std::move(memory);
  plan.hash = HashPlan(plan);
  return plan;
}

}  // namespace shardgraph
