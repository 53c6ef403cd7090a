// Files made with PyTorch (tests/fixtures/README.md), and the distances that
// tests hold ours to.
#ifndef TESTS_HARNESS_TORCH_FIXTURE_H_
#define TESTS_HARNESS_TORCH_FIXTURE_H_

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/safetensors.h"
#include "kernels/check.h"
#include "kernels/reference/access.h"
#include "kernels/status_macros.h"
#include "kernels/testing/conformance.h"
#include "nlohmann/json.hpp"

namespace shardgraph {

using Values = std::vector<double>;  // row-major

// The pair PATH.safetensors, PATH.json. A file or tensor that is not there ends
// the test.
class TorchFixture {
 public:
  explicit TorchFixture(const std::string& path) {
    auto file = SafetensorsFile::Open(absl::StrCat(path, ".safetensors"));
    SG_CHECK_OK(file);
    file_ = *std::move(file);
    std::ifstream(absl::StrCat(path, ".json")) >> json_;
  }

  const nlohmann::json& json() const { return json_; }

  Dims Shape(const std::string& name) const { return Find(name).shape; }

  Values Get(const std::string& name) const {
    const SafetensorsEntry& entry = Find(name);
    const std::string data(file_->Data(entry));  // aligned
    Values values(NumElements(entry.shape));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = LoadElement(*entry.dtype, data.data(), i);
    return values;
  }

  OperandCase Operand(const std::string& name, DType dtype) const {
    return OperandCase(TensorType(dtype, Shape(name)), Get(name));
  }

 private:
  const SafetensorsEntry& Find(const std::string& name) const {
    const SafetensorsEntry* entry = file_->Find(name);
    SG_CHECK(entry != nullptr) << name;
    return *entry;
  }

  std::unique_ptr<SafetensorsFile> file_;
  nlohmann::json json_;
};

// L2 norm of a - b, and of a.
inline double Distance(const Values& a, const Values& b) {
  SG_CHECK_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}
inline double Norm(const Values& a) { return Distance(a, Values(a.size())); }

}  // namespace shardgraph

#endif  // TESTS_HARNESS_TORCH_FIXTURE_H_
