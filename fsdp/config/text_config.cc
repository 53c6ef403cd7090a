#include "fsdp/config/text_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Messages in messages; the parser recurses.
constexpr int kMaxNesting = 200;

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i)
    names.push_back(type.field(i)->name());
  return names;
}

// "; did you mean \"x\"?" or the list of what there is.
std::string Suggestion(absl::string_view word,
                       const std::vector<std::string>& candidates) {
  const std::string nearest = NearestName(word, candidates);
  if (!nearest.empty())
    return absl::StrCat("; did you mean \"", nearest, "\"?");
  return absl::StrCat("; there are: ", absl::StrJoin(candidates, ", "));
}

std::vector<std::string> ValueNames(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i)
    names.push_back(type.value(i)->name());
  return names;
}

// The type of the first enum field of this name below `root`.
const EnumDescriptor* FindEnum(const std::string& field, const Descriptor& root,
                               std::set<const Descriptor*>* seen) {
  if (!seen->insert(&root).second) return nullptr;
  for (int i = 0; i < root.field_count(); ++i) {
    const FieldDescriptor& candidate = *root.field(i);
    if (candidate.name() == field && candidate.enum_type() != nullptr)
      return candidate.enum_type();
    if (candidate.message_type() == nullptr) continue;
    const EnumDescriptor* found =
        FindEnum(field, *candidate.message_type(), seen);
    if (found != nullptr) return found;
  }
  return nullptr;
}

// Adds what there is to protobuf's own message about an unknown enum value.
std::string ExplainEnum(const std::string& message, const Descriptor& root) {
  constexpr absl::string_view kField = "\" for field \"";
  const size_t at = message.find(std::string(kField));
  if (!absl::StartsWith(message, "Unknown enumeration value") ||
      at == std::string::npos)
    return message;
  const size_t begin = at + kField.size();
  std::set<const Descriptor*> seen;
  const EnumDescriptor* type = FindEnum(
      message.substr(begin, message.find('"', begin) - begin), root, &seen);
  if (type == nullptr) return message;
  return absl::StrCat(absl::StripSuffix(message, "."), "; it takes one of ",
                      absl::StrJoin(ValueNames(*type), ", "));
}

// Adds the nearest name to protobuf's own message about an unknown field.
std::string Explain(const std::string& message, const Descriptor& root) {
  constexpr absl::string_view kType = "Message type \"",
                              kField = "\" has no field named \"";
  const size_t type_at = message.find(std::string(kType)),
               field_at = message.find(std::string(kField));
  if (type_at == std::string::npos || field_at == std::string::npos)
    return ExplainEnum(message, root);
  const std::string type =
      message.substr(type_at + kType.size(), field_at - type_at - kType.size());
  const size_t begin = field_at + kField.size();
  const std::string field =
      message.substr(begin, message.find('"', begin) - begin);
  const Descriptor* descriptor =
      root.file()->pool()->FindMessageTypeByName(type);
  const std::string hint =
      descriptor == nullptr ? "" : Suggestion(field, FieldNames(*descriptor));
  return absl::StrCat("unknown field \"", field, "\" in ",
                      descriptor == nullptr ? type : descriptor->name(), hint);
}

class Collector final : public google::protobuf::io::ErrorCollector {
 public:
  Collector(absl::string_view file, const Descriptor* root)
      : file_(file), root_(root) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (first_.empty())
      first_ = absl::StrCat(file_, ":", line + 1, ":", column + 1, ": ",
                            Explain(message, *root_));
  }
  const std::string& first() const { return first_; }

 private:
  std::string file_;
  const Descriptor* root_;
  std::string first_;
};

absl::Status WrongValue(absl::string_view path, absl::string_view value,
                        absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " cannot be \"", value, "\": it takes ", allowed));
}

// Sets a scalar field, or adds to a repeated one.
absl::Status SetScalar(absl::string_view path, absl::string_view value,
                       const FieldDescriptor& field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const bool add = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t number;
      const bool narrow = field.cpp_type() == FieldDescriptor::CPPTYPE_INT32;
      if (!absl::SimpleAtoi(value, &number) ||
          (narrow && (number < std::numeric_limits<int32_t>::min() ||
                      number > std::numeric_limits<int32_t>::max()))) {
        return WrongValue(path, value,
                          narrow ? "an integer of 32 bits" : "an integer");
      }
      if (narrow) {
        add ? reflection.AddInt32(message, &field, number)
            : reflection.SetInt32(message, &field, number);
      } else {
        add ? reflection.AddInt64(message, &field, number)
            : reflection.SetInt64(message, &field, number);
      }
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t number;
      if (!absl::SimpleAtoi(value, &number))
        return WrongValue(path, value, "an integer that is not negative");
      add ? reflection.AddUInt64(message, &field, number)
          : reflection.SetUInt64(message, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double number;
      if (!absl::SimpleAtod(value, &number) || !std::isfinite(number))
        return WrongValue(path, value, "a number");
      add ? reflection.AddDouble(message, &field, number)
          : reflection.SetDouble(message, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      bool truth;
      if (!absl::SimpleAtob(value, &truth))
        return WrongValue(path, value, "true or false");
      add ? reflection.AddBool(message, &field, truth)
          : reflection.SetBool(message, &field, truth);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      add ? reflection.AddString(message, &field, std::string(value))
          : reflection.SetString(message, &field, std::string(value));
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumDescriptor& type = *field.enum_type();
      const auto* number = type.FindValueByName(std::string(value));
      if (number == nullptr) {
        return WrongValue(
            path, value,
            absl::StrCat("one of ", absl::StrJoin(ValueNames(type), ", ")));
      }
      add ? reflection.AddEnum(message, &field, number)
          : reflection.SetEnum(message, &field, number);
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          path, " is of a type that cannot be set from the command line"));
  }
}

}  // namespace

std::string NearestName(absl::string_view word,
                        const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = word.size() / 2 + 1;
  for (const std::string& candidate : candidates) {
    // The distance is at least what one is longer than the other.
    const size_t longer = std::max(word.size(), candidate.size()),
                 shorter = std::min(word.size(), candidate.size());
    if (longer - shorter >= best_distance) continue;
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j <= candidate.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t replace = diagonal + (word[i - 1] != candidate[j - 1]);
        diagonal = row[j];
        row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

absl::Status ParseTextConfig(absl::string_view text, absl::string_view file,
                             Message* message) {
  Collector collector(file, message->GetDescriptor());
  google::protobuf::TextFormat::Parser parser;
  parser.SetRecursionLimit(kMaxNesting);
  parser.RecordErrorsTo(&collector);
  if (parser.ParseFromString(std::string(text), message))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      collector.first().empty()
          ? absl::StrCat(file, ": not a text format config")
          : collector.first());
}

absl::Status ApplyOverride(absl::string_view assignment, Message* message) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  const absl::string_view path = parts.first, value = parts.second;
  if (!absl::StrContains(assignment, "=")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", assignment,
        "\" is not of the form field.path=value, for example run.steps=100"));
  }
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i < names.size(); ++i) {
    const Descriptor& type = *message->GetDescriptor();
    const FieldDescriptor* field = type.FindFieldByName(names[i]);
    if (field == nullptr) {
      const std::string parent =
          absl::StrJoin(names.begin(), names.begin() + i, ".");
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown field \"", path, "\": ",
          parent.empty() ? std::string("the config") : parent, " has no \"",
          names[i], "\"", Suggestion(names[i], FieldNames(type))));
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      if (i + 1 < names.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": ", names[i], " is a value, it has no field \"",
            names[i + 1], "\""));
      }
      if (!field->is_repeated()) return SetScalar(path, value, *field, message);
      message->GetReflection()->ClearField(message, field);
      for (absl::string_view element :
           absl::StrSplit(value, ',', absl::SkipEmpty())) {
        SG_RETURN_IF_ERROR(SetScalar(path, absl::StripAsciiWhitespace(element),
                                     *field, message));
      }
      return absl::OkStatus();
    }
    if (field->is_repeated()) {
      int index = -1;
      const int size = message->GetReflection()->FieldSize(*message, field);
      if (i + 2 >= names.size() || !absl::SimpleAtoi(names[i + 1], &index) ||
          index < 0 || index >= size) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": ", names[i], " has ", size,
            " elements; name one by its index and a field of it, as in ",
            names[i], ".0.field=value"));
      }
      message = message->GetReflection()->MutableRepeatedMessage(message, field,
                                                                 index);
      ++i;
      continue;
    }
    if (i + 1 == names.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is a group of fields; set one of ",
                       absl::StrJoin(FieldNames(*field->message_type()), ", "),
                       ", for example ", path, ".",
                       field->message_type()->field_count() > 0
                           ? field->message_type()->field(0)->name()
                           : std::string(),
                       "=..."));
    }
    message = message->GetReflection()->MutableMessage(message, field);
  }
  return absl::InvalidArgumentError("an override without a field path");
}

}  // namespace shardgraph
