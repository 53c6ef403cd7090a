// Prints what the doctor found.

#ifndef TOOLS_DOCTOR_REPORT_H_
#define TOOLS_DOCTOR_REPORT_H_

#include <string>
#include <vector>

#include "tools/doctor/diagnose.h"
#include "tools/doctor/facts.h"

namespace shardgraph::doctor {

// For people; ends with the problems and their remedies.
std::string TextReport(const Facts& facts,
                       const std::vector<Problem>& problems);

// One JSON object; sizes in bytes, "usable" is false when a problem is fatal.
std::string JsonReport(const Facts& facts,
                       const std::vector<Problem>& problems);

// No problem is fatal.
bool IsUsable(const std::vector<Problem>& problems);

}  // namespace shardgraph::doctor

#endif  // TOOLS_DOCTOR_REPORT_H_
