// Versions of the libraries linked into this program.

#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "gloo/config.h"
#include "google/protobuf/stubs/common.h"
#include "oneapi/dnnl/dnnl.h"
#include "tools/doctor/facts.h"
#include "zlib.h"

namespace shardgraph::doctor {

std::vector<Library> GatherLibraries() {
#ifdef ABSL_LTS_RELEASE_VERSION
  const std::string absl_version = absl::StrCat(
      "LTS ", ABSL_LTS_RELEASE_VERSION, ".", ABSL_LTS_RELEASE_PATCH_LEVEL);
#else
  const std::string absl_version = "from source";
#endif
  const dnnl_version_t* dnnl = dnnl_version();
  return {
      {"compiler", __VERSION__, "linked"},
      {"Abseil", absl_version, "linked"},
      {"Protobuf",
       google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION),
       "linked"},
      {"oneDNN", absl::StrCat(dnnl->major, ".", dnnl->minor, ".", dnnl->patch),
       "linked"},
      {"Gloo",
       absl::StrCat(GLOO_VERSION_MAJOR, ".", GLOO_VERSION_MINOR, ".",
                    GLOO_VERSION_PATCH),
       "linked"},
      {"zlib", zlibVersion(), "linked"},
  };
}

}  // namespace shardgraph::doctor
