// The text of a plan: tables for a person.
#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/train/recompute_choice.h"
#include "tools/plan/attention_kernels.h"
#include "tools/plan/report.h"

namespace shardgraph {
namespace {

constexpr size_t kMaxRows = 14;

// Columns; the first to the left, the others to the right.
class Table {
 public:
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string ToString() const {
    std::vector<size_t> width;
    for (const auto& row : rows_) {
      width.resize(std::max(width.size(), row.size()));
      for (size_t i = 0; i < row.size(); ++i)
        width[i] = std::max(width[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows_) {
      absl::StrAppend(&text, "  ");
      for (size_t i = 0; i < row.size(); ++i) {
        if (i == 0 && row.size() == 1) {
          absl::StrAppend(&text, row[i]);
        } else if (i == 0) {
          absl::StrAppendFormat(&text, "%-*s", width[i], row[i]);
        } else {
          absl::StrAppendFormat(&text, "  %*s", width[i], row[i]);
        }
      }
      absl::StrAppend(&text, "\n");
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Digits as one star: names that differ in numbers only are one row.
std::string Pattern(absl::string_view name) {
  std::string pattern;
  for (char c : name) {
    if (!std::isdigit(static_cast<unsigned char>(c))) {
      pattern.push_back(c);
    } else if (pattern.empty() || pattern.back() != '*') {
      pattern.push_back('*');
    }
  }
  return pattern;
}

std::string Percent(double share) {
  return absl::StrFormat("%.1f %%", 100 * share);
}

std::string PrintFlops(double flops) {
  constexpr const char* kUnits[] = {"", " k", " M", " G", " T", " P", " E"};
  int unit = 0;
  while (flops >= 999.5 && unit < 6) {
    flops /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.4g%sFLOP", flops, unit == 0 ? " " : kUnits[unit]);
}

std::string Head(const PlanReport& report) {
  const TrainConfig& config = *report.config;
  const DataSpec& data = config.data();
  return absl::StrFormat(
      "%s: %s parameters, %s over %d rank%s, %s, target %s\n"
      "a step: %d sequences of %d tokens in %d micro-batch%s of %d per rank\n",
      report.config_name, PrintCount(report.plan->model->numel()),
      PrintStrategy(config.shard()), report.world_size,
      report.world_size == 1 ? "" : "s",
      Dtype_Name(config.precision().compute()), report.target.name(),
      data.batch_size(), data.sequence_length(), report.micro_batches,
      report.micro_batches == 1 ? "" : "es", data.micro_batch_size());
}

std::string Units(const PlanReport& report) {
  const std::vector<ShardUnit>& units = report.plan->layout.units();
  Table table;
  table.Add({"unit", "parameters", "of a rank", "gathered", "padding"});
  for (size_t i = 0; i < units.size();) {
    size_t end = i + 1;
    while (end < units.size() && units[end].flat.numel == units[i].flat.numel &&
           Pattern(units[end].name) == Pattern(units[i].name)) {
      ++end;
    }
    const FlatParameter& flat = units[i].flat;
    std::string name = units[i].name.empty() ? "(root)" : units[i].name;
    if (end > i + 1)
      absl::StrAppend(&name, " .. ", units[end - 1].name, "  x", end - i);
    table.Add({name, PrintCount(flat.numel), PrintCount(flat.shard_numel),
               PrintBytes(static_cast<double>(flat.padded_numel) *
                          SizeOf(report.plan->compute)),
               PrintCount(flat.padded_numel - flat.numel)});
    i = end;
  }
  return absl::StrCat("\nunits: ", units.size(), "\n", table.ToString());
}

std::string Memory(const PlanReport& report) {
  const MemoryPlan& memory = report.plan->plan.memory;
  Table table;
  int64_t sum = 0;
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
    const int64_t bytes = memory.bytes_by_kind[kind];
    if (bytes == 0) continue;
    sum += bytes;
    table.Add({std::string(MemoryKindName(static_cast<MemoryKind>(kind))),
               PrintBytes(bytes),
               Percent(static_cast<double>(bytes) / memory.arena_bytes)});
  }
  table.Add({"alignment and gaps", PrintBytes(memory.arena_bytes - sum),
             Percent(static_cast<double>(memory.arena_bytes - sum) /
                     memory.arena_bytes)});
  table.Add({"arena", PrintBytes(memory.arena_bytes), ""});
  std::string text =
      absl::StrCat("\nmemory of a rank at its peak\n", table.ToString());
  absl::StrAppendFormat(
      &text,
      "  %s of it live for the run or the step, %s within a phase (lower "
      "bound %s)\n",
      PrintBytes(memory.persistent_bytes), PrintBytes(memory.transient_bytes),
      PrintBytes(memory.transient_lower_bound));
  if (report.plan->snapshot_bytes > 0) {
    absl::StrAppendFormat(
        &text,
        "  beside it %s of host memory, for the copy that a checkpoint is "
        "written from\n",
        PrintBytes(report.plan->snapshot_bytes));
  }
  return text;
}

std::string LiveAtPeak(const PlanReport& report) {
  const Graph& graph = report.plan->plan.graph;
  const MemoryPlan& memory = report.plan->plan.memory;
  if (memory.peak_node == kNone) return "";
  struct Row {
    std::string name;
    MemoryKind kind;
    int64_t count = 0;
    int64_t bytes = 0;
  };
  std::map<std::pair<std::string, MemoryKind>, Row> rows;
  for (BufferId id : memory.live_at_peak) {
    const Buffer& buffer = graph.buffers[id];
    Row& row = rows[{Pattern(buffer.name), buffer.kind}];
    row.name = row.count == 0 ? buffer.name : Pattern(buffer.name);
    if (row.name[0] == '/') row.name = absl::StrCat("(root)", row.name);
    row.kind = buffer.kind;
    ++row.count;
    row.bytes += buffer.bytes;
  }
  std::vector<Row> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  std::stable_sort(
      sorted.begin(), sorted.end(),
      [](const Row& a, const Row& b) { return a.bytes > b.bytes; });
  Table table;
  int64_t rest = 0, rest_count = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Row& row = sorted[i];
    if (i >= kMaxRows) {
      rest += row.bytes;
      rest_count += row.count;
      continue;
    }
    table.Add(
        {row.count > 1 ? absl::StrCat(row.name, "  x", row.count) : row.name,
         std::string(MemoryKindName(row.kind)), PrintBytes(row.bytes)});
  }
  if (rest_count > 0)
    table.Add({absl::StrCat(rest_count, " more"), "", PrintBytes(rest)});
  const Node& node = graph.nodes[memory.peak_node];
  return absl::StrCat("\nlive at the peak, phase ",
                      graph.phases[memory.peak_phase].name, ", ",
                      DirectionName(node.direction), ", at ", node.op->name,
                      " of \"", graph.scope_of(node), "\"\n", table.ToString());
}

std::string Work(const PlanReport& report) {
  const CommunicationVolume& volume = report.communication;
  Table table;
  table.Add({"all-gather", PrintBytes(volume.all_gather_bytes)});
  table.Add({"reduce-scatter", PrintBytes(volume.reduce_scatter_bytes)});
  table.Add({"all-reduce", PrintBytes(volume.all_reduce_bytes)});
  if (volume.all_to_all_bytes > 0)
    table.Add({"all-to-all", PrintBytes(volume.all_to_all_bytes)});
  table.Add({"model FLOPs", PrintFlops(report.model_flops)});
  table.Add({"FLOPs with recomputation", PrintFlops(report.executed_flops)});
  table.Add({"nodes of the plan", PrintCount(report.nodes)});
  table.Add({"events of the plan", PrintCount(report.events)});
  return absl::StrCat("\nper rank and step\n", table.ToString());
}

std::string Attention(const PlanReport& report) {
  const std::vector<AttentionKernels> all =
      AttentionKernelsOf(report.plan->plan.graph, report.target);
  if (all.empty()) return "";
  std::string text = "\nkernels of attention, of all phases\n";
  for (const AttentionKernels& kernels : all) {
    absl::StrAppend(&text, "  ", kernels.op, "  x", kernels.nodes, "  ",
                    kernels.own_kernel_reason.empty()
                        ? "cuDNN"
                        : absl::StrCat("own kernel, as cuDNN has none: ",
                                       kernels.own_kernel_reason),
                    "\n");
  }
  return text;
}

std::string Time(const PlanReport& report) {
  const Graph& graph = report.plan->plan.graph;
  Table table;
  for (const StepPhase& phase : report.step) {
    const double seconds = report.timelines[phase.phase].seconds;
    table.Add({absl::StrCat(graph.phases[phase.phase].name, "  x", phase.runs),
               PrintSeconds(seconds * phase.runs),
               Percent(seconds * phase.runs / report.step_seconds)});
  }
  table.Add({"step", PrintSeconds(report.step_seconds), ""});
  for (const LaneUse& lane : report.lanes) {
    if (lane.nodes == 0) continue;
    table.Add({absl::StrCat(lane.name, " lane idle"),
               PrintSeconds(lane.idle_share * report.step_seconds),
               Percent(lane.idle_share)});
  }
  std::string text = absl::StrCat("\ntime by the cost model of ",
                                  report.target.name(), "\n", table.ToString());
  absl::StrAppendFormat(&text, "  %.4g tokens/s over all ranks",
                        report.TokensPerSecond());
  if (report.Utilization() > 0)
    absl::StrAppendFormat(&text, ", %s of the peak",
                          Percent(report.Utilization()));
  absl::StrAppend(&text, "\n");
  return text;
}

std::string Fit(const PlanReport& report) {
  const int64_t limit = report.target.memory_bytes();
  const int64_t arena = report.plan->plan.memory.arena_bytes;
  if (limit == 0) return "";
  if (report.missing_bytes == 0) {
    return absl::StrCat("\nfits: ", PrintBytes(limit - arena), " of ",
                        PrintBytes(limit), " are left\n");
  }
  std::string text = absl::StrCat(
      "\ndoes not fit: ", PrintBytes(arena), " of ", PrintBytes(limit), "; ",
      PrintBytes(report.missing_bytes), " too much\n");
  if (report.fitting.empty()) {
    absl::StrAppend(&text,
                    "  neither recomputation, smaller micro-batches nor a "
                    "larger world makes it fit; shorten data.sequence_length "
                    "or choose a target with more memory\n");
    return text;
  }
  Table table;
  table.Add({"what would fit", "arena"});
  for (const FittingSetting& setting : report.fitting)
    table.Add({setting.settings, PrintBytes(setting.arena_bytes)});
  return absl::StrCat(text, table.ToString());
}

}  // namespace

std::string TextReport(const PlanReport& report) {
  return absl::StrCat(
      Head(report), Units(report), Memory(report), LiveAtPeak(report),
      Work(report), Attention(report), Time(report), Fit(report),
      report.recompute.has_value()
          ? absl::StrCat("\n", DescribeRecompute(*report.recompute))
          : "",
      "\nhash ", report.plan->plan.hash, "\n");
}

}  // namespace shardgraph
