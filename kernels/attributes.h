// Attributes: the named constants of an op instance (transpose flags, epsilon,
// group names, ...).
//
// A small ordered map; equality and order are by content, so that plans print
// and hash alike everywhere. Read in `infer` and `prepare` only, never at
// launch.
#ifndef KERNELS_ATTRIBUTES_H_
#define KERNELS_ATTRIBUTES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace shardgraph {

class Attributes {
 public:
  using Value =
      std::variant<int64_t, double, std::string, std::vector<int64_t>>;

  // Out of line: most files include this header, and each would compile what
  // a variant takes.
  Attributes();
  Attributes(const Attributes& other);
  Attributes(Attributes&& other) noexcept;
  Attributes& operator=(const Attributes& other);
  Attributes& operator=(Attributes&& other) noexcept;
  ~Attributes();

  Attributes& Set(absl::string_view name, Value value);
  Attributes& SetInt(absl::string_view name, int64_t value);
  Attributes& SetDouble(absl::string_view name, double value);
  Attributes& SetString(absl::string_view name, absl::string_view value);
  Attributes& SetInts(absl::string_view name, std::vector<int64_t> value);

  bool Has(absl::string_view name) const { return Find(name) != nullptr; }
  // The value, or `otherwise` when the attribute is absent. A value of another
  // kind is an invariant violation.
  int64_t Int(absl::string_view name, int64_t otherwise = 0) const;
  double Double(absl::string_view name, double otherwise = 0) const;
  std::string String(absl::string_view name,
                     absl::string_view otherwise = "") const;
  const std::vector<int64_t>& Ints(
      absl::string_view name) const;  // empty when absent

  const std::vector<std::pair<std::string, Value>>& entries() const {
    return entries_;
  }  // sorted by name
  // "epsilon=1e-05 transpose_b=1"; doubles with all their digits.
  std::string ToString() const;

  friend bool operator==(const Attributes& a, const Attributes& b);

 private:
  const Value* Find(absl::string_view name) const;

  std::vector<std::pair<std::string, Value>> entries_;
};

}  // namespace shardgraph

#endif  // KERNELS_ATTRIBUTES_H_
