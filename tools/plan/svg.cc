// The picture of a plan: lanes over time and memory below, on one axis.
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tools/plan/report.h"

namespace shardgraph {
namespace {

// Pixels.
constexpr double kWidth = 1200, kLeft = 128, kRight = 24, kTop = 88;
constexpr double kLaneHeight = 38, kLaneGap = 18, kMemoryHeight = 190;
constexpr double kPlot = kWidth - kLeft - kRight, kPhaseGap = 26;
// Nodes narrower than this are drawn together with their neighbours.
constexpr double kNarrow = 1.2;

// By Direction; neighbouring units alternate between the two shades.
constexpr std::array<std::array<const char*, 2>, 4> kNodeColors = {{
    {"#3f7cc4", "#79a7dc"},
    {"#8c62b5", "#b696d2"},
    {"#e07b28", "#f0ab70"},
    {"#3b9a5f", "#7cc397"},
}};

struct Layer {
  const char* name;
  const char* color;
  std::vector<MemoryKind> kinds;
};

// From the bottom up. The first is what lives for the run or the step.
const std::vector<Layer>& Layers() {
  static const auto& layers = *new std::vector<Layer>{
      {"parameters, optimizer, gradient shards", "#c3cbd6", {}},
      {"activations", "#8cc0a6", {MemoryKind::kActivation}},
      {"gathered parameters", "#7fa8dd", {MemoryKind::kGatheredParameter}},
      {"gradients of a unit", "#efaa6b", {MemoryKind::kGradient}},
      {"reduced shards", "#d9776b", {MemoryKind::kReduceStage}},
      {"workspace and other", "#b9a2d6", {}},
  };
  return layers;
}

size_t LayerOf(MemoryKind kind) {
  for (size_t i = 0; i < Layers().size(); ++i) {
    const std::vector<MemoryKind>& kinds = Layers()[i].kinds;
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) return i;
  }
  return Layers().size() - 1;
}

std::string Escape(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// "transformer.h.3" is "h.3", "model.embed_tokens" "embed_tokens".
std::string ShortName(const std::string& unit) {
  if (unit.empty()) return "root";
  const size_t dot = unit.rfind('.');
  if (dot == std::string::npos) return unit;
  if (!std::isdigit(static_cast<unsigned char>(unit.back())))
    return unit.substr(dot + 1);
  const size_t before = dot == 0 ? std::string::npos : unit.rfind('.', dot - 1);
  return before == std::string::npos ? unit : unit.substr(before + 1);
}

// 1, 2 or 5 times a power of ten, at most `count` steps in `range`.
double TickStep(double range, int count) {
  const double power = std::pow(10, std::floor(std::log10(range / count)));
  for (double step : {1.0, 2.0, 5.0}) {
    if (range / (step * power) <= count) return step * power;
  }
  return 10 * power;
}

std::string Hatch(absl::string_view id, absl::string_view color) {
  return absl::StrFormat(
      "<pattern id=\"%s\" width=\"6\" height=\"6\" "
      "patternTransform=\"rotate(45)\" patternUnits=\"userSpaceOnUse\">"
      "<line y2=\"6\" stroke=\"%s\" stroke-width=\"2.4\"/></pattern>",
      id, color);
}

class Picture {
 public:
  explicit Picture(const PlanReport& report)
      : report_(report), graph_(report.plan->plan.graph) {
    for (size_t lane = 0; lane < report.lanes.size(); ++lane) {
      if (report.lanes[lane].nodes == 0) continue;
      lane_top_[static_cast<int>(lane)] =
          kTop + lane_top_.size() * (kLaneHeight + kLaneGap);
    }
    memory_top_ = kTop + lane_top_.size() * (kLaneHeight + kLaneGap) + 14;
    double seconds = 0;
    for (const StepPhase& phase : report.step)
      seconds += report.timelines[phase.phase].seconds;
    const double gaps = kPhaseGap * (report.step.size() - 1.0);
    scale_ = (kPlot - gaps) / std::max(seconds, 1e-12);
    double left = kLeft;
    for (const StepPhase& phase : report.step) {
      left_[phase.phase] = left;
      left += report.timelines[phase.phase].seconds * scale_ + kPhaseGap;
    }
  }

  std::string Draw() {
    const double height = memory_top_ + kMemoryHeight + 118;
    absl::StrAppendFormat(
        &svg_,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
        "width=\"%.0f\" height=\"%.0f\" font-family=\"Helvetica, Arial, "
        "sans-serif\" font-size=\"12\" fill=\"#2b3440\">\n"
        "<defs>%s%s</defs>\n"
        "<rect width=\"%.0f\" height=\"%.0f\" fill=\"#ffffff\"/>\n",
        kWidth, height, kWidth, height, Hatch("lost", "#d5685c"),
        Hatch("wait", "#b3bbc5"), kWidth, height);
    Title();
    Axis();
    for (const StepPhase& phase : report_.step) {
      Lanes(report_.timelines[phase.phase]);
      Memory(report_.timelines[phase.phase]);
    }
    MemoryScale();
    Legend(memory_top_ + kMemoryHeight + 46);
    absl::StrAppend(&svg_, "</svg>\n");
    return std::move(svg_);
  }

 private:
  void Text(double x, double y, absl::string_view text,
            absl::string_view attributes = "") {
    absl::StrAppendFormat(&svg_, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n",
                          x, y, attributes, Escape(text));
  }
  void Rect(double x, double y, double width, double height,
            absl::string_view fill, absl::string_view title,
            absl::string_view attributes = "") {
    absl::StrAppendFormat(&svg_,
                          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" "
                          "height=\"%.1f\" fill=\"%s\"%s",
                          x, y, width, height, fill, attributes);
    if (title.empty()) {
      absl::StrAppend(&svg_, "/>\n");
    } else {
      absl::StrAppend(&svg_, "><title>", Escape(title), "</title></rect>\n");
    }
  }
  void Line(double x1, double y1, double x2, double y2,
            absl::string_view attributes) {
    absl::StrAppendFormat(
        &svg_, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n",
        x1, y1, x2, y2, attributes);
  }

  void Title() {
    Text(
        20, 30,
        absl::StrFormat("%s: %s over %d rank%s", report_.config_name,
                        PrintStrategy(report_.config->shard()),
                        report_.world_size, report_.world_size == 1 ? "" : "s"),
        "font-size=\"18\" font-weight=\"bold\"");
    const LaneUse& compute = report_.lanes[0];
    Text(20, 50,
         absl::StrFormat(
             "target %s, %s a step by its cost model, compute idle %.1f %% of "
             "it, arena %s",
             report_.target.name(), PrintSeconds(report_.step_seconds),
             100 * compute.idle_share,
             PrintBytes(report_.plan->plan.memory.arena_bytes)),
         "fill=\"#5b6673\"");
  }

  void Axis() {
    const double bottom = memory_top_ + kMemoryHeight;
    for (const StepPhase& phase : report_.step) {
      const double left = left_[phase.phase];
      const double seconds = report_.timelines[phase.phase].seconds;
      const double width = seconds * scale_;
      const std::string name =
          phase.runs == 1 ? graph_.phases[phase.phase].name
                          : absl::StrCat(graph_.phases[phase.phase].name, ", ",
                                         phase.runs, " times a step");
      // A narrow phase at the right edge has its name to the left.
      const bool fits = width > 7.0 * name.size();
      Text(fits ? left : left + width, kTop - 14, name,
           fits ? "font-weight=\"bold\""
                : "font-weight=\"bold\" text-anchor=\"end\"");
      Line(left, kTop - 8, left + width, kTop - 8, "stroke=\"#8a94a0\"");
      const double step =
          TickStep(seconds, std::max(1, static_cast<int>(width / 90)));
      for (double t = 0; t <= seconds * 1.0001 && seconds > 0; t += step) {
        const double x = left + t * scale_;
        Line(x, kTop - 8, x, bottom, "stroke=\"#e3e7ec\" stroke-width=\"0.8\"");
        if (width > 60 || left == kLeft)
          Text(x, bottom + 16, PrintSeconds(t),
               "text-anchor=\"middle\" font-size=\"11\" fill=\"#5b6673\"");
      }
    }
    for (const auto& [lane, top] : lane_top_) {
      Text(kLeft - 12, top + kLaneHeight / 2 + 4, report_.lanes[lane].name,
           "text-anchor=\"end\" font-weight=\"bold\"");
      for (const StepPhase& phase : report_.step) {
        Rect(left_[phase.phase], top,
             report_.timelines[phase.phase].seconds * scale_, kLaneHeight,
             "#f2f4f7", "");
      }
    }
  }

  absl::string_view ColorOf(const Node& node) const {
    const int direction = static_cast<int>(node.direction);
    return kNodeColors[direction][node.unit == kNone ? 0 : node.unit % 2];
  }

  std::string UnitOf(const Node& node) const {
    return node.unit == kNone ? "" : graph_.units[node.unit].name;
  }

  void Lanes(const PhaseTimeline& timeline) {
    struct Bar {
      double begin = 0, end = 0;
      const Node* node = nullptr;
      int64_t nodes = 0;
    };
    for (const auto& [lane, top] : lane_top_) {
      Bar bar;
      const auto flush = [&, top = top] {
        if (bar.nodes == 0) return;
        const std::string what = bar.nodes > 1
                                     ? absl::StrCat(bar.nodes, " nodes")
                                     : absl::StrCat(bar.node->op->name, " of ",
                                                    graph_.scope_of(*bar.node));
        Rect(X(timeline.phase, bar.begin), top, (bar.end - bar.begin) * scale_,
             kLaneHeight, ColorOf(*bar.node),
             absl::StrCat(what, ", unit \"", UnitOf(*bar.node), "\", ",
                          DirectionName(bar.node->direction), ", ",
                          PrintSeconds(bar.end - bar.begin)),
             (bar.end - bar.begin) * scale_ > 3
                 ? " stroke=\"#ffffff\" stroke-width=\"0.5\""
                 : "");
        bar = Bar();
      };
      for (const NodeTime& time : timeline.nodes) {
        if (time.lane != lane) continue;
        const Node& node = graph_.nodes[time.node];
        if ((time.begin - time.ready) * scale_ > 0.4) {
          flush();
          Rect(X(timeline.phase, time.ready), top + kLaneHeight * 0.3,
               (time.begin - time.ready) * scale_, kLaneHeight * 0.4,
               lane == 0 ? "url(#lost)" : "url(#wait)",
               absl::StrCat("waits ", PrintSeconds(time.begin - time.ready)));
        }
        const bool joins = bar.nodes > 0 && node.unit == bar.node->unit &&
                           node.direction == bar.node->direction &&
                           ((time.end - time.begin) * scale_ < kNarrow ||
                            (bar.end - bar.begin) * scale_ < kNarrow) &&
                           (time.begin - bar.end) * scale_ < 0.4;
        if (!joins) flush();
        if (bar.nodes == 0) bar = {time.begin, time.end, &node, 0};
        bar.end = time.end;
        ++bar.nodes;
      }
      flush();
      Labels(timeline, lane, top);
    }
  }

  // Names of units where there is room.
  void Labels(const PhaseTimeline& timeline, int lane, double top) {
    double begin = 0, end = 0;
    const Node* last = nullptr;
    const auto flush = [&] {
      if (last == nullptr || last->unit == kNone) return;
      const std::string name = ShortName(UnitOf(*last));
      if ((end - begin) * scale_ < 6.4 * name.size() + 4) return;
      Text(X(timeline.phase, (begin + end) / 2), top + kLaneHeight / 2 + 4,
           name,
           "text-anchor=\"middle\" font-size=\"11\" fill=\"#ffffff\" "
           "pointer-events=\"none\"");
    };
    for (const NodeTime& time : timeline.nodes) {
      if (time.lane != lane) continue;
      const Node& node = graph_.nodes[time.node];
      if (last == nullptr || node.unit != last->unit ||
          node.direction != last->direction) {
        flush();
        begin = time.begin;
      }
      last = &node;
      end = time.end;
    }
    flush();
  }

  double X(PhaseId phase, double seconds) const {
    return left_.at(phase) + seconds * scale_;
  }

  // Bytes of each layer by pixel column: at the column's highest moment.
  std::vector<std::vector<double>> LiveBytes(const PhaseTimeline& timeline) {
    struct Interval {
      double begin = std::numeric_limits<double>::max();
      double end = 0;
    };
    std::map<BufferId, Interval> intervals;
    std::vector<Access> accesses;
    for (const NodeTime& time : timeline.nodes) {
      accesses.clear();
      AppendAccesses(graph_, graph_.nodes[time.node], &accesses);
      for (const Access& access : accesses) {
        if (graph_.buffers[access.buffer].lifetime != Lifetime::kPhase)
          continue;
        Interval& interval = intervals[access.buffer];
        interval.begin = std::min(interval.begin, time.begin);
        interval.end = std::max(interval.end, time.end);
      }
    }
    struct Change {
      double time;
      size_t layer;
      double bytes;
    };
    std::vector<Change> changes;
    for (const auto& [id, interval] : intervals) {
      const Buffer& buffer = graph_.buffers[id];
      const double bytes = static_cast<double>(buffer.bytes);
      const size_t layer = LayerOf(buffer.kind);
      changes.push_back({interval.begin, layer, bytes});
      changes.push_back({interval.end, layer, -bytes});
    }
    // What ends makes room for what begins at the same time.
    std::sort(changes.begin(), changes.end(),
              [](const Change& a, const Change& b) {
                return std::tie(a.time, a.bytes, a.layer) <
                       std::tie(b.time, b.bytes, b.layer);
              });
    const size_t columns = static_cast<size_t>(
        std::max(1.0, std::ceil(timeline.seconds * scale_)));
    std::vector<std::vector<double>> highest(
        columns, std::vector<double>(Layers().size(), 0));
    std::vector<double> highest_sum(columns, -1);
    std::vector<double> now(Layers().size(), 0);
    now[0] = static_cast<double>(report_.plan->plan.memory.persistent_bytes);
    size_t next = 0;
    double sum = now[0];
    const auto take = [&](size_t column) {
      if (sum <= highest_sum[column]) return;
      highest_sum[column] = sum;
      highest[column] = now;
    };
    for (size_t column = 0; column < columns; ++column) {
      take(column);
      while (next < changes.size() &&
             (changes[next].time * scale_ < column + 1.0 ||
              column + 1 == columns)) {
        // All changes of one moment count together.
        const double time = changes[next].time;
        for (; next < changes.size() && changes[next].time == time; ++next) {
          now[changes[next].layer] += changes[next].bytes;
          sum += changes[next].bytes;
        }
        take(column);
      }
    }
    return highest;
  }

  double Y(double bytes) const {
    return memory_top_ + kMemoryHeight * (1 - bytes / MemoryTop());
  }
  double MemoryTop() const {
    return 1.06 * static_cast<double>(report_.plan->plan.memory.arena_bytes);
  }

  void Memory(const PhaseTimeline& timeline) {
    const std::vector<std::vector<double>> live = LiveBytes(timeline);
    const double left = left_[timeline.phase];
    const double right = left + timeline.seconds * scale_;
    std::vector<double> below(live.size(), 0);
    for (size_t layer = 0; layer < Layers().size(); ++layer) {
      std::string upper, lower;
      bool any = false;
      for (size_t c = 0; c < live.size(); ++c) {
        const double top = below[c] + live[c][layer];
        any |= top > below[c];
        const double x1 = std::min(left + c, right);
        const double x2 = std::min(left + c + 1.0, right);
        // Flat stretches are one piece.
        const bool same = c > 0 && c + 1 < live.size() &&
                          live[c] == live[c - 1] && live[c] == live[c + 1];
        if (!same) {
          absl::StrAppendFormat(&upper, "L%.1f %.1f L%.1f %.1f ", x1, Y(top),
                                x2, Y(top));
          lower = absl::StrFormat("L%.1f %.1f L%.1f %.1f ", x2, Y(below[c]), x1,
                                  Y(below[c])) +
                  lower;
        }
        below[c] = top;
      }
      if (!any) continue;
      upper[0] = 'M';
      absl::StrAppendFormat(
          &svg_, "<path d=\"%s%sZ\" fill=\"%s\"><title>%s</title></path>\n",
          upper, lower, Layers()[layer].color, Layers()[layer].name);
    }
  }

  void MemoryScale() {
    Text(kLeft - 12, memory_top_ - 8, "memory",
         "text-anchor=\"end\" font-weight=\"bold\"");
    const double arena =
        static_cast<double>(report_.plan->plan.memory.arena_bytes);
    double unit = 1;
    while (arena / unit >= 1024) unit *= 1024;
    const double step = TickStep(MemoryTop() / unit, 5) * unit;
    for (double bytes = 0; bytes < MemoryTop(); bytes += step) {
      if (std::abs(Y(bytes) - Y(arena)) > 12) {
        Text(kLeft - 12, Y(bytes) + 4, bytes == 0 ? "0" : PrintBytes(bytes),
             "text-anchor=\"end\" font-size=\"11\" fill=\"#5b6673\"");
      }
      Line(kLeft - 6, Y(bytes), kLeft, Y(bytes), "stroke=\"#8a94a0\"");
    }
    Line(kLeft - 6, Y(arena), kWidth - kRight, Y(arena),
         "stroke=\"#2b3440\" stroke-dasharray=\"5 3\"");
    Text(kLeft - 12, Y(arena) + 4, absl::StrCat("arena ", PrintBytes(arena)),
         "text-anchor=\"end\" font-size=\"11\" font-weight=\"bold\"");
    Line(kLeft, memory_top_ + kMemoryHeight, kWidth - kRight,
         memory_top_ + kMemoryHeight, "stroke=\"#8a94a0\"");
  }

  void Legend(double y) {
    double x = kLeft;
    const auto entry = [&](absl::string_view fill, absl::string_view second,
                           absl::string_view name) {
      Rect(x, y - 10, second.empty() ? 20 : 10, 12, fill, "");
      if (!second.empty()) Rect(x + 10, y - 10, 10, 12, second, "");
      Text(x + 26, y, name, "font-size=\"11.5\"");
      x += 26 + 6.3 * name.size() + 22;
    };
    Text(kLeft - 12, y, "nodes", "text-anchor=\"end\" font-weight=\"bold\"");
    for (int direction = 0; direction < 4; ++direction) {
      entry(kNodeColors[direction][0], kNodeColors[direction][1],
            DirectionName(static_cast<Direction>(direction)));
    }
    entry("url(#lost)", "", "compute waits");
    entry("url(#wait)", "", "another lane waits");
    Text(x, y, "shades alternate by unit",
         "font-size=\"11.5\" fill=\"#5b6673\"");
    y += 26;
    x = kLeft;
    Text(kLeft - 12, y, "memory", "text-anchor=\"end\" font-weight=\"bold\"");
    for (const Layer& layer : Layers()) entry(layer.color, "", layer.name);
  }

  const PlanReport& report_;
  const Graph& graph_;
  std::string svg_;
  std::map<int, double> lane_top_;
  std::map<PhaseId, double> left_;
  double memory_top_ = 0;
  double scale_ = 1;  // pixels per second
};

}  // namespace

std::string SvgReport(const PlanReport& report) {
  return Picture(report).Draw();
}

}  // namespace shardgraph
