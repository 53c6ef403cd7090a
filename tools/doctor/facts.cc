#include "tools/doctor/facts.h"

namespace shardgraph::doctor {

Facts GatherFacts() {
  return {.cpu = GatherCpu(),
          .memory = GatherMemory(),
          .limits = GatherLimits(),
          .network = GatherNetwork(),
          .launch = GatherLaunch(),
          .libraries = GatherLibraries(),
          .cuda = GatherCuda()};
}

}  // namespace shardgraph::doctor
