#include "kernels/cuda/library_places.h"

#include <glob.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace shardgraph::cuda {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// CUDA's own folder.
std::string Home() {
  const std::string home = Variable("CUDA_HOME");
  return home.empty() ? "/usr/local/cuda" : home;
}

void AddMatches(const std::string& pattern, std::vector<std::string>* files) {
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i)
      files->push_back(found.gl_pathv[i]);
  }
  globfree(&found);
}

}  // namespace

std::vector<std::string> LibraryPlaces(const std::string& file) {
  std::vector<std::string> places = {file};
  for (const char* const folder : {"/lib64/", "/lib/"}) {
    const std::string path = absl::StrCat(Home(), folder, file);
    if (access(path.c_str(), R_OK) == 0) places.push_back(path);
  }
  std::vector<std::string> packages;  // folders that Python imports from
  for (const char* const name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string root = Variable(name);
    if (!root.empty())
      packages.push_back(absl::StrCat(root, "/lib/python3*/site-packages"));
  }
  for (const absl::string_view path :
       absl::StrSplit(Variable("PYTHONPATH"), ':', absl::SkipEmpty()))
    packages.emplace_back(path);
  const std::string user = Variable("HOME");
  if (!user.empty())
    packages.push_back(
        absl::StrCat(user, "/.local/lib/python3*/site-packages"));
  for (const char* const root :
       {"/usr/local/lib", "/usr/lib", "/opt/conda/lib", "/opt/venv/lib"})
    packages.push_back(absl::StrCat(root, "/python3*/*-packages"));
  for (const std::string& folder : packages)
    AddMatches(absl::StrCat(folder, "/nvidia/*/lib/", file), &places);
  return places;
}

std::string LibraryPlacesInWords() {
  return absl::StrCat(
      "the loader's path (LD_LIBRARY_PATH), ", Home(),
      "/lib64, and nvidia/*/lib of Python's site-packages (VIRTUAL_ENV, "
      "CONDA_PREFIX, PYTHONPATH, the home and the system's folders)");
}

}  // namespace shardgraph::cuda
