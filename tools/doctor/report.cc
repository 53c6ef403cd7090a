#include "tools/doctor/report.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace shardgraph::doctor {
namespace {

// The CPU features that kernels choose by: flag and name.
constexpr std::pair<const char*, const char*> kFeatures[] = {
    {"avx2", "AVX2"},       {"fma", "FMA"},
    {"avx512f", "AVX-512"}, {"avx512_bf16", "AVX-512 BF16"},
    {"amx_tile", "AMX"},    {"amx_bf16", "AMX BF16"}};

std::string Size(int64_t bytes) {
  if (bytes < 0) return "unknown";
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1024) return absl::StrFormat("%.0f MiB", mib);
  return absl::StrFormat("%.1f GiB", mib / 1024);
}

std::string Limit(int64_t value) {
  return value < 0 ? "unlimited" : absl::StrCat(value);
}

class Table {
 public:
  // The title is printed before the first of the rows that share it.
  void Row(const std::string& title, const std::string& text) {
    const bool same = title == last_title_;
    absl::StrAppendFormat(&out_, "%-10s %s\n", same ? "" : title, text);
    last_title_ = title;
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
  std::string last_title_;
};

void CudaRows(const CudaFacts& cuda, Table& table) {
  table.Row("CUDA",
            cuda.built_version == 0
                ? "this program was built without it"
                : absl::StrCat("built with ", CudaVersion(cuda.built_version)));
  table.Row("CUDA", cuda.driver_version == 0
                        ? "driver not found"
                        : absl::StrCat("driver for CUDA up to ",
                                       CudaVersion(cuda.driver_version)));
  for (const Library& library : cuda.libraries) {
    table.Row("CUDA", library.version.empty()
                          ? absl::StrCat(library.name, " not found")
                          : absl::StrCat(library.name, " ", library.version,
                                         "  ", library.place));
  }
  table.Row("CUDA", absl::StrCat("devices: ", ExplainGpuAnswer(cuda)));
  for (const Gpu& gpu : cuda.gpus) {
    table.Row("CUDA", absl::StrCat(gpu.name, ", compute capability ",
                                   gpu.compute_capability, ", ",
                                   Size(gpu.memory_bytes)));
  }
  if (!cuda.gpus.empty()) table.Row("CUDA", ExplainWindows(cuda));
}

nlohmann::ordered_json LibrariesJson(const std::vector<Library>& libraries) {
  auto list = nlohmann::ordered_json::array();
  for (const Library& library : libraries) {
    list.push_back({{"name", library.name},
                    {"version", library.version},
                    {"place", library.place}});
  }
  return list;
}

}  // namespace

bool IsUsable(const std::vector<Problem>& problems) {
  return absl::c_none_of(problems,
                         [](const Problem& problem) { return problem.fatal; });
}

std::string TextReport(const Facts& facts,
                       const std::vector<Problem>& problems) {
  Table table;
  const CpuFacts& cpu = facts.cpu;
  table.Row("CPU",
            absl::StrCat(cpu.model.empty() ? "unknown model" : cpu.model, ", ",
                         cpu.online_cores, " cores, ", cpu.usable_cores,
                         " usable here, ",
                         cpu.numa_nodes == 0 ? "unknown number of"
                                             : absl::StrCat(cpu.numa_nodes),
                         " NUMA node(s)"));
  table.Row("CPU",
            absl::StrJoin(kFeatures, ", ", [&](std::string* out, auto& f) {
              absl::StrAppend(out, f.second, cpu.Has(f.first) ? "" : " no");
            }));
  if (cpu.amx_permission.has_value()) {
    table.Row("CPU", *cpu.amx_permission ? "the kernel permits AMX"
                                         : "the kernel refuses AMX");
  }
  table.Row("CPU", absl::StrCat("kernels for ", cpu.target, "; there are ",
                                absl::StrJoin(cpu.targets, ", ")));
  const MemoryFacts& memory = facts.memory;
  table.Row("Memory",
            absl::StrCat(Size(memory.total), ", ", Size(memory.available),
                         " available",
                         memory.container_limit < 0
                             ? ""
                             : absl::StrCat(", container limit ",
                                            Size(memory.container_limit))));
  table.Row("Memory", absl::StrCat("/dev/shm ", Size(memory.shm_size), ", ",
                                   Size(memory.shm_available), " free"));
  table.Row("Limits",
            absl::StrCat("open files ", Limit(facts.limits.open_files),
                         ", locked memory ",
                         facts.limits.memlock_bytes < 0
                             ? "unlimited"
                             : Size(facts.limits.memlock_bytes)));
  table.Row(
      "Network",
      absl::StrCat("loopback ",
                   facts.network.loopback_error.empty() ? "works" : "fails",
                   ", InfiniBand ", facts.network.infiniband ? "yes" : "no"));
  for (const std::string& interface : facts.network.interfaces) {
    table.Row("Network", interface);
  }
  table.Row("Launcher",
            facts.launch.launcher.empty() ? "none" : facts.launch.launcher);
  for (const auto& [name, value] : facts.launch.variables) {
    table.Row("Launcher", absl::StrCat(name, "=", value));
  }
  for (const Library& library : facts.libraries) {
    table.Row("Libraries", absl::StrCat(library.name, " ", library.version));
  }
  CudaRows(facts.cuda, table);

  std::string out = table.Take();
  if (problems.empty()) {
    absl::StrAppend(&out, "\nNo problems found.\n");
    return out;
  }
  absl::StrAppend(&out, "\nProblems\n");
  for (const Problem& problem : problems) {
    absl::StrAppend(&out,
                    problem.fatal ? "  error: " : "  warning: ", problem.what,
                    "\n    remedy: ", problem.remedy, "\n");
  }
  return out;
}

std::string JsonReport(const Facts& facts,
                       const std::vector<Problem>& problems) {
  using Json = nlohmann::ordered_json;
  const CpuFacts& cpu = facts.cpu;
  Json features = Json::object();
  for (const auto& [flag, name] : kFeatures) features[flag] = cpu.Has(flag);
  Json json;
  json["usable"] = IsUsable(problems);
  json["cpu"] = {
      {"model", cpu.model},
      {"online_cores", cpu.online_cores},
      {"usable_cores", cpu.usable_cores},
      {"numa_nodes", cpu.numa_nodes},
      {"features", features},
      {"amx_permission",
       cpu.amx_permission.has_value() ? Json(*cpu.amx_permission) : Json()},
      {"targets", cpu.targets},
      {"target", cpu.target}};
  json["memory"] = {{"total", facts.memory.total},
                    {"available", facts.memory.available},
                    {"container_limit", facts.memory.container_limit},
                    {"shm_size", facts.memory.shm_size},
                    {"shm_available", facts.memory.shm_available},
                    {"shm_error", facts.memory.shm_error}};
  json["limits"] = {{"open_files", facts.limits.open_files},
                    {"memlock_bytes", facts.limits.memlock_bytes}};
  json["network"] = {{"loopback_error", facts.network.loopback_error},
                     {"interfaces", facts.network.interfaces},
                     {"infiniband", facts.network.infiniband}};
  Json variables = Json::object();
  for (const auto& [name, value] : facts.launch.variables) {
    variables[name] = value;
  }
  json["launch"] = {{"launcher", facts.launch.launcher},
                    {"variables", variables}};
  json["libraries"] = LibrariesJson(facts.libraries);
  Json gpus = Json::array();
  for (const Gpu& gpu : facts.cuda.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"compute_capability", gpu.compute_capability},
                    {"memory_bytes", gpu.memory_bytes}});
  }
  json["cuda"] = {{"built_version", facts.cuda.built_version},
                  {"driver_version", facts.cuda.driver_version},
                  {"runtime_version", facts.cuda.runtime_version},
                  {"device_count_error", facts.cuda.device_count_error},
                  {"devices", ExplainGpuAnswer(facts.cuda)},
                  {"gpus", gpus},
                  {"nvlink_pairs", facts.cuda.linked_pairs},
                  {"windows", ExplainWindows(facts.cuda)},
                  {"libraries", LibrariesJson(facts.cuda.libraries)}};
  Json list = Json::array();
  for (const Problem& problem : problems) {
    list.push_back({{"fatal", problem.fatal},
                    {"what", problem.what},
                    {"remedy", problem.remedy}});
  }
  json["problems"] = list;
  return json.dump(2) + "\n";
}

}  // namespace shardgraph::doctor
