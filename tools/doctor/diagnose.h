// Judges the facts about a machine: what does not fit, and the remedy.

#ifndef TOOLS_DOCTOR_DIAGNOSE_H_
#define TOOLS_DOCTOR_DIAGNOSE_H_

#include <string>
#include <vector>

#include "tools/doctor/facts.h"

namespace shardgraph::doctor {

struct Problem {
  bool fatal;          // training cannot work as things are
  std::string what;    // one sentence, with the value found
  std::string remedy;  // what to type or change
};

// Fatal ones first.
std::vector<Problem> Diagnose(const Facts& facts);

// What cudaGetDeviceCount's answer means, in one line; for error 35 CUDA's own
// text blames the driver's version even where there is no driver.
std::string ExplainGpuAnswer(const CudaFacts& cuda);

// Whether collectives can work on registered windows, and gather without
// computing units (zero-SM), by NCCL's version and how the GPUs are connected.
std::string ExplainWindows(const CudaFacts& cuda);

}  // namespace shardgraph::doctor

#endif  // TOOLS_DOCTOR_DIAGNOSE_H_
