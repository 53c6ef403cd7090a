#include "kernels/attributes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"

namespace shardgraph {

Attributes::Attributes() = default;
Attributes::Attributes(const Attributes& other) = default;
Attributes::Attributes(Attributes&& other) noexcept = default;
Attributes& Attributes::operator=(const Attributes& other) = default;
Attributes& Attributes::operator=(Attributes&& other) noexcept = default;
Attributes::~Attributes() = default;

bool operator==(const Attributes& a, const Attributes& b) {
  return a.entries_ == b.entries_;
}

Attributes& Attributes::SetInt(absl::string_view name, int64_t value) {
  return Set(name, value);
}

Attributes& Attributes::SetDouble(absl::string_view name, double value) {
  return Set(name, value);
}

Attributes& Attributes::SetString(absl::string_view name,
                                  absl::string_view value) {
  return Set(name, std::string(value));
}

Attributes& Attributes::SetInts(absl::string_view name,
                                std::vector<int64_t> value) {
  return Set(name, std::move(value));
}

Attributes& Attributes::Set(absl::string_view name, Value value) {
  auto it = std::lower_bound(
      entries_.begin(), entries_.end(), name,
      [](const auto& entry, absl::string_view n) { return entry.first < n; });
  if (it != entries_.end() && it->first == name) {
    it->second = std::move(value);
  } else {
    entries_.insert(it, {std::string(name), std::move(value)});
  }
  return *this;
}

const Attributes::Value* Attributes::Find(absl::string_view name) const {
  for (const auto& [key, value] : entries_) {
    if (key == name) return &value;
  }
  return nullptr;
}

int64_t Attributes::Int(absl::string_view name, int64_t otherwise) const {
  const Value* value = Find(name);
  if (value == nullptr) return otherwise;
  SG_CHECK(std::holds_alternative<int64_t>(*value))
      << "attribute " << std::string(name) << " is not an integer";
  return std::get<int64_t>(*value);
}

double Attributes::Double(absl::string_view name, double otherwise) const {
  const Value* value = Find(name);
  if (value == nullptr) return otherwise;
  SG_CHECK(std::holds_alternative<double>(*value))
      << "attribute " << std::string(name) << " is not a double";
  return std::get<double>(*value);
}

std::string Attributes::String(absl::string_view name,
                               absl::string_view otherwise) const {
  const Value* value = Find(name);
  if (value == nullptr) return std::string(otherwise);
  SG_CHECK(std::holds_alternative<std::string>(*value))
      << "attribute " << std::string(name) << " is not a string";
  return std::get<std::string>(*value);
}

const std::vector<int64_t>& Attributes::Ints(absl::string_view name) const {
  static const auto& empty = *new std::vector<int64_t>();
  const Value* value = Find(name);
  if (value == nullptr) return empty;
  SG_CHECK(std::holds_alternative<std::vector<int64_t>>(*value))
      << "attribute " << std::string(name) << " is no list";
  return std::get<std::vector<int64_t>>(*value);
}

std::string Attributes::ToString() const {
  struct Print {
    std::string operator()(int64_t v) const { return absl::StrCat(v); }
    std::string operator()(double v) const {
      return absl::StrFormat("%.17g", v);
    }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<int64_t>& v) const {
      return absl::StrCat("[", absl::StrJoin(v, ","), "]");
    }
  };
  return absl::StrJoin(entries_, " ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, "=", std::visit(Print(), entry.second));
  });
}

}  // namespace shardgraph
