#include "fsdp/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/files/json.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are mapped as they are");

using Json = nlohmann::json;

constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr char kMetadata[] = "__metadata__";
constexpr absl::string_view kKeys[] = {"data_offsets", "dtype", "shape"};

struct NamedSize {
  absl::string_view name;
  int64_t bytes;
};

// Every dtype of the format with whole bytes.
constexpr NamedSize kDTypes[] = {
    {"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},     {"BF16", 2},
    {"I32", 4},     {"U32", 4}, {"F32", 4}, {"F64", 8},     {"I64", 8},
    {"U64", 8},     {"C64", 8}};

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

// Builds the header's value as the parser goes along. Keys of an object are
// unique, and nothing is nested deeper than the format nests.
class HeaderBuilder final : public nlohmann::json_sax<Json> {
 public:
  Json& header() { return root_; }
  // What is wrong; empty: nothing.
  const std::string& problem() const { return problem_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override {
    return Add(value);
  }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override {
    if (open_.size() > 1) return Problem("an object is nested too deeply");
    return Begin(Json::object());
  }
  bool key(std::string& name) override {
    if (open_.back()->contains(name))
      return Problem(absl::StrCat("the key \"", name, "\" appears twice"));
    key_ = std::move(name);
    return true;
  }
  bool end_object() override { return End(); }
  bool start_array(size_t) override {
    if (open_.size() > 2) return Problem("an array is nested too deeply");
    return Begin(Json::array());
  }
  bool end_array() override { return End(); }
  bool parse_error(size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    problem_ = absl::StrCat(" is no JSON: ", error.what());
    return false;
  }

 private:
  bool Problem(absl::string_view what) {
    problem_ = absl::StrCat(": ", what);
    return false;
  }
  Json* Put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& outer = *open_.back();
    if (outer.is_object()) return &(outer[std::move(key_)] = std::move(value));
    outer.push_back(std::move(value));
    return &outer.back();
  }
  bool Add(Json value) {
    Put(std::move(value));
    return true;
  }
  bool Begin(Json value) {
    open_.push_back(Put(std::move(value)));
    return true;
  }
  bool End() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // objects and arrays around what comes next
  std::string key_;          // of it, in an object
  std::string problem_;
};

absl::StatusOr<Json> ParseHeader(absl::string_view text) {
  HeaderBuilder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder))
    return Wrong(absl::StrCat("its header", builder.problem()));
  if (!builder.header().is_object())
    return Wrong("its header is no JSON object");
  return std::move(builder.header());
}

absl::StatusOr<int64_t> NonNegative(const Json& value, absl::string_view what) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return Wrong(absl::StrCat(what, " holds ", JsonText(value),
                              "; it must be an integer from 0 to 2^63 - 1"));
  }
  return static_cast<int64_t>(value.get<uint64_t>());
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name,
                                            const Json& value) {
  if (!value.is_object()) return Wrong("is no JSON object");
  for (const absl::string_view key : kKeys) {
    if (!value.contains(std::string(key)))
      return Wrong(absl::StrCat("has no \"", key, "\""));
  }
  for (const auto& item : value.items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), item.key()) ==
        std::end(kKeys))
      return Wrong(absl::StrCat("has an unknown key \"", item.key(), "\""));
  }
  SafetensorsEntry entry;
  entry.name = name;
  const Json& dtype = value["dtype"];
  const NamedSize* named = nullptr;
  if (dtype.is_string()) {
    entry.dtype_name = dtype.get<std::string>();
    for (const NamedSize& candidate : kDTypes) {
      if (candidate.name == entry.dtype_name) named = &candidate;
    }
  }
  if (named == nullptr) {
    return Wrong(absl::StrCat(
        "has dtype ", JsonText(dtype), "; known are ",
        absl::StrJoin(kDTypes, ", ", [](std::string* out, const NamedSize& d) {
          absl::StrAppend(out, d.name);
        })));
  }
  DType ours;
  if (ParseDType(entry.dtype_name, &ours)) entry.dtype = ours;

  const Json& shape = value["shape"];
  if (!shape.is_array()) return Wrong("has a shape that is no array");
  // A zero makes the tensor empty; the others still have a product that can be
  // computed.
  int64_t bytes = named->bytes;
  bool empty = false, overflow = false;
  for (const Json& dim : shape) {
    SG_ASSIGN_OR_RETURN(const int64_t size, NonNegative(dim, "the shape"));
    entry.shape.push_back(size);
    empty = empty || size == 0;
    overflow =
        (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) || overflow;
  }
  if (empty) bytes = 0;
  if (overflow) {
    return Wrong(absl::StrCat("has shape [", absl::StrJoin(entry.shape, ", "),
                              "], more bytes than 2^63 - 1"));
  }
  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2)
    return Wrong("has data_offsets that are no array of two");
  SG_ASSIGN_OR_RETURN(entry.begin, NonNegative(offsets[0], "data_offsets"));
  SG_ASSIGN_OR_RETURN(entry.end, NonNegative(offsets[1], "data_offsets"));
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    return Wrong(absl::StrCat("has data_offsets [", entry.begin, ", ",
                              entry.end, "], but ", entry.dtype_name, "[",
                              absl::StrJoin(entry.shape, ", "), "] takes ",
                              bytes, " bytes"));
  }
  return entry;
}

absl::Status ParseMetadata(const Json& value,
                           std::map<std::string, std::string>* metadata) {
  if (!value.is_object()) return Wrong("__metadata__ is no JSON object");
  for (const auto& item : value.items()) {
    if (!item.value().is_string()) {
      return Wrong(absl::StrCat("__metadata__ \"", item.key(),
                                "\" is no string: ", JsonText(item.value())));
    }
    metadata->emplace(item.key(), item.value().get<std::string>());
  }
  return absl::OkStatus();
}

// The tensors, in order of their data, tile [0, bytes).
absl::Status CheckTiling(const std::vector<SafetensorsEntry>& entries,
                         int64_t bytes) {
  int64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != at) {
      return Wrong(absl::StrCat(
          "tensor \"", entry.name, "\" starts at byte ", entry.begin,
          entry.begin < at ? ", inside the one before, which ends at "
                           : ", behind a gap that starts at ",
          at));
    }
    at = entry.end;
  }
  if (at == bytes) return absl::OkStatus();
  return Wrong(absl::StrCat(
      "its header describes ", at, " bytes of data, but it holds ", bytes,
      at > bytes ? ": it is truncated" : ": there are trailing bytes"));
}

}  // namespace

absl::StatusOr<int64_t> ParseSafetensors(
    absl::string_view file, std::vector<SafetensorsEntry>* entries,
    std::map<std::string, std::string>* metadata) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    return Wrong(absl::StrCat("it has ", file.size(),
                              " bytes; a safetensors file has at least 10"));
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  file.remove_prefix(sizeof(header_bytes));
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return Wrong(absl::StrCat("its header would have ", header_bytes,
                              " bytes, more than ", kMaxHeaderBytes,
                              "; it is no safetensors file"));
  }
  if (header_bytes > file.size()) {
    return Wrong(absl::StrCat("its header has ", header_bytes,
                              " bytes, but only ", file.size(),
                              " follow: it is truncated"));
  }
  const absl::string_view text = file.substr(0, header_bytes);
  if (text.empty() || text[0] != '{')
    return Wrong("its header does not start with '{'");
  SG_ASSIGN_OR_RETURN(const Json header, ParseHeader(text));
  for (const auto& item : header.items()) {
    if (item.key() == kMetadata) {
      SG_RETURN_IF_ERROR(ParseMetadata(item.value(), metadata));
      continue;
    }
    absl::StatusOr<SafetensorsEntry> entry =
        ParseEntry(item.key(), item.value());
    if (!entry.ok()) {
      return Wrong(absl::StrCat("tensor \"", item.key(), "\" ",
                                entry.status().message()));
    }
    entries->push_back(*std::move(entry));
  }
  std::sort(entries->begin(), entries->end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  SG_RETURN_IF_ERROR(
      CheckTiling(*entries, static_cast<int64_t>(file.size() - header_bytes)));
  return static_cast<int64_t>(sizeof(header_bytes) + header_bytes);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const std::string message =
        absl::StrCat("cannot read ", path, ": ", strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message)
                           : absl::InvalidArgumentError(message);
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Wrong(absl::StrCat(path, " is no regular file"));
  }
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  if (info.st_size > 0) {
    void* map = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
      const int error = errno;
      close(fd);
      return Wrong(absl::StrCat("cannot map ", path, ": ", strerror(error)));
    }
    file->map_ = static_cast<const char*>(map);
    file->map_bytes_ = info.st_size;
  }
  close(fd);
  const absl::StatusOr<int64_t> start =
      ParseSafetensors(absl::string_view(file->map_, file->map_bytes_),
                       &file->entries_, &file->metadata_);
  if (!start.ok()) {
    return Wrong(absl::StrCat("safetensors file ", path, ": ",
                              start.status().message()));
  }
  file->data_ = file->map_ + *start;
  for (size_t i = 0; i < file->entries_.size(); ++i)
    file->index_[file->entries_[i].name] = static_cast<int>(i);
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (map_ != nullptr) munmap(const_cast<char*>(map_), map_bytes_);
}

void SafetensorsFile::Release(const SafetensorsEntry& entry, int64_t begin,
                              int64_t end) const {
  if (begin >= end) return;
  const char* const data = data_ + entry.begin;
  ReleaseBytes(data + begin, data + end);
}

void SafetensorsFile::ReleaseBytes(const char* begin, const char* end) const {
  // Around a page that is looked at, Linux maps those of the same 64 KiB.
  constexpr uintptr_t kAround = 64 << 10;
  const uintptr_t map = reinterpret_cast<uintptr_t>(map_);
  const uintptr_t first = std::max(map, reinterpret_cast<uintptr_t>(begin) /
                                            kAround * kAround),
                  last = std::min(
                      map + map_bytes_,
                      (reinterpret_cast<uintptr_t>(end) + kAround - 1) /
                          kAround * kAround);
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

const SafetensorsEntry* SafetensorsFile::Find(absl::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &entries_[it->second];
}

namespace {

template <typename T>
void Widen(const char* from, absl::Span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(value);
  }
}

}  // namespace

void ReadAsFloat(DType dtype, absl::string_view data, int64_t begin,
                 absl::Span<float> out) {
  SG_CHECK(begin >= 0 &&
           (begin + static_cast<int64_t>(out.size())) * SizeOf(dtype) <=
               static_cast<int64_t>(data.size()));
  const char* from = data.data() + begin * SizeOf(dtype);
  switch (dtype) {
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), from, out.size() * 4);
      return;
    case DType::kBF16:
      return Widen<BFloat16>(from, out);
    case DType::kF16:
      return Widen<Float16>(from, out);
    case DType::kF64:
      return Widen<double>(from, out);
    default:
      SG_CHECK(false) << DTypeName(dtype) << " is no floating dtype";
  }
}

absl::StatusOr<SafetensorsHeader> MakeSafetensorsHeader(
    absl::Span<const SafetensorsTensor> tensors,
    std::map<std::string, std::string> metadata, size_t alignment) {
  SafetensorsHeader header;
  std::set<std::string> names;
  for (const SafetensorsTensor& tensor : tensors) {
    SG_CHECK(tensor.name != kMetadata && names.insert(tensor.name).second)
        << "the name " << tensor.name;
    SafetensorsEntry& entry = header.entries.emplace_back();
    entry.name = tensor.name;
    entry.dtype = tensor.dtype;
    entry.dtype_name = std::string(DTypeName(tensor.dtype));
    entry.shape = tensor.shape;
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              const int64_t size_a = SizeOf(*a.dtype),
                            size_b = SizeOf(*b.dtype);
              return size_a != size_b ? size_a > size_b : a.name < b.name;
            });
  std::string text = "{";
  if (!metadata.empty())
    absl::StrAppend(&text, "\"", kMetadata, "\":", JsonText(metadata));
  int64_t end = 0;
  for (SafetensorsEntry& entry : header.entries) {
    entry.begin = end;
    end += NumElements(entry.shape) * SizeOf(*entry.dtype);
    entry.end = end;
    absl::StrAppend(&text, text.size() > 1 ? "," : "", JsonText(entry.name),
                    ":{\"dtype\":\"", entry.dtype_name, "\",\"shape\":[",
                    absl::StrJoin(entry.shape, ","), "],\"data_offsets\":[",
                    entry.begin, ",", entry.end, "]}");
  }
  text += "}";
  uint64_t bytes = text.size();
  bytes = (sizeof(bytes) + bytes + alignment - 1) / alignment * alignment -
          sizeof(bytes);
  text.resize(bytes, ' ');
  if (static_cast<int64_t>(bytes) > kMaxHeaderBytes) {
    return Wrong(absl::StrCat("the header of ", tensors.size(),
                              " tensors has more than ", kMaxHeaderBytes,
                              " bytes; write several files"));
  }
  header.text = absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(&bytes), sizeof(bytes)),
      text);
  return header;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, SafetensorsHeader header) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  SG_ASSIGN_OR_RETURN(writer->file_,
                      DurableFile::Create(path, DurableFile::Cache::kBypassed));
  if (!header.entries.empty()) writer->remaining_ = header.entries.back().end;
  SG_RETURN_IF_ERROR(writer->file_->Append(header.text));
  writer->header_ = std::move(header);
  return writer;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, absl::Span<const Tensor> tensors,
    std::map<std::string, std::string> metadata) {
  absl::StatusOr<SafetensorsHeader> header =
      MakeSafetensorsHeader(tensors, std::move(metadata));
  if (!header.ok())
    return Wrong(absl::StrCat(path, ": ", header.status().message()));
  return Create(path, *std::move(header));
}

absl::Status SafetensorsWriter::Append(absl::string_view data) {
  remaining_ -= static_cast<int64_t>(data.size());
  SG_CHECK(remaining_ >= 0) << "more data than the tensors take";
  return file_->Append(data);
}

absl::Status SafetensorsWriter::Close() {
  SG_CHECK(remaining_ == 0) << remaining_ << " bytes are missing";
  return file_->Commit();
}

}  // namespace shardgraph
