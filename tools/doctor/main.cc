// doctor: says what this machine has, what is missing and what does not fit
// together. Exit status: 0 usable, 1 not, 2 a wrong flag or variable.

#include <cstdio>
#include <string>
#include <vector>

#include "tools/doctor/diagnose.h"
#include "tools/doctor/facts.h"
#include "tools/doctor/report.h"

int main(int argc, char** argv) {
  using namespace shardgraph::doctor;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--format=json") {
      json = true;
    } else if (flag == "--format=text") {
      json = false;
    } else {
      std::fprintf(stderr,
                   "doctor: unknown flag '%s'; allowed: --format=text|json\n",
                   flag.c_str());
      return 2;
    }
  }
  const Facts facts = GatherFacts();
  const std::vector<Problem> problems = Diagnose(facts);
  const std::string report =
      json ? JsonReport(facts, problems) : TextReport(facts, problems);
  std::fwrite(report.data(), 1, report.size(), stdout);
  return IsUsable(problems) ? 0 : 1;
}
