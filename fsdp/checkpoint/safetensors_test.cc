#include "fsdp/checkpoint/safetensors.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

// A file in memory: header length, header, `data` bytes of data.
std::string File(const std::string& header, size_t data) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header +
         std::string(data, 'x');
}

absl::StatusOr<int64_t> Parse(const std::string& file) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  return ParseSafetensors(file, &entries, &metadata);
}

std::string Path(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", name);
}

absl::string_view Bytes(const void* data, size_t bytes) {
  return absl::string_view(static_cast<const char*>(data), bytes);
}

TEST(SafetensorsTest, RoundTrip) {
  const std::string path = Path("round.safetensors");
  auto writer =
      SafetensorsWriter::Create(path,
                                {{"b", DType::kBF16, {3}},
                                 {"quote \" and \u00e9", DType::kF32, {2, 3}},
                                 {"a", DType::kF32, {}},
                                 {"empty", DType::kF64, {0, 7}},
                                 {"big", DType::kI64, {2}},
                                 {"bytes", DType::kU8, {5}}},
                                {{"format", "pt"}, {"note", "{\"x\":[1]}"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : (*writer)->entries()) {
    names.push_back(entry.name);
    ASSERT_TRUE((*writer)
                    ->Append(std::string(entry.end - entry.begin,
                                         static_cast<char>('0' + names.size())))
                    .ok());
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"big", "empty", "a",
                                      "quote \" and \u00e9", "b", "bytes"}));
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));

  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata().at("note"), "{\"x\":[1]}");
  ASSERT_EQ((*file)->entries().size(), 6u);
  const SafetensorsEntry* entry = (*file)->Find("quote \" and \u00e9");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->dtype, DType::kF32);
  EXPECT_EQ(entry->shape, (Dims{2, 3}));
  EXPECT_EQ((*file)->Data(*entry), std::string(24, '4'));
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*file)->Data(*entry).data()) % 4, 0u);
  EXPECT_EQ((*file)->Find("none"), nullptr);
  EXPECT_EQ((*file)->Data(*(*file)->Find("empty")), "");
}

TEST(SafetensorsTest, AnUnfinishedFileLeavesNothing) {
  const std::string path = Path("unfinished.safetensors");
  {
    auto writer =
        SafetensorsWriter::Create(path, {{"a", DType::kF32, {4}}}, {});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append("1234").ok());
    EXPECT_TRUE(std::filesystem::exists(path + ".tmp"));
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SafetensorsTest, UnwritablePlaces) {
  const auto writer = SafetensorsWriter::Create(
      Path("no/such/folder/a.safetensors"), {{"a", DType::kF32, {4}}}, {});
  ASSERT_FALSE(writer.ok());
  EXPECT_TRUE(absl::StrContains(writer.status().message(),
                                "no/such/folder/a.safetensors"));
}

TEST(SafetensorsTest, AcceptsWhatTheFormatAllows) {
  const std::string a =
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  for (const std::string& file : {
           File("{}", 0),
           File("{" + a + "}", 8),
           File("{" + a + "}   ", 8),
           File("{ \"__metadata__\" : {} , " + a + "}", 8),
           // Not in order of the data; a scalar; empty tensors.
           File(R"({"b":{"dtype":"I8","shape":[],"data_offsets":[8,9]},)" + a +
                    R"(,"c":{"dtype":"F64","shape":[0],"data_offsets":[8,8]},)"
                    R"("d":{"dtype":"BOOL","data_offsets":[9,9],)"
                    R"("shape":[4611686018427387904,0,0]}})",
                9),
           File(R"({"f":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]}})",
                3),
       }) {
    EXPECT_TRUE(Parse(file).ok()) << Parse(file).status() << "\n" << file;
  }
}

TEST(SafetensorsTest, RejectsBadFiles) {
  const auto entry = [](const std::string& body) {
    return "{\"a\":{" + body + "}}";
  };
  const struct {
    std::string file;
    std::string message;
  } cases[] = {
      {"", "it has 0 bytes"},
      {"1234567", "it has 7 bytes"},
      {std::string(8, '\0'), "does not start with '{'"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10),
       "more than 100000000"},
      {File("{}", 0).substr(0, 9), "it is truncated"},
      {File(" {}", 0), "does not start with '{'"},
      {File("[]", 0), "does not start with '{'"},
      {File("{", 0), "no JSON"},
      {File("{}x", 0), "no JSON"},
      {File("{\"\xff\":1}", 0), "no JSON"},
      {File("{\"a\":1}", 0), "tensor \"a\" is no JSON object"},
      {File(entry(""), 0), "tensor \"a\" has no \"data_offsets\""},
      {File(entry(R"("shape":[],"data_offsets":[0,4])"), 4),
       "has no \"dtype\""},
      {File(entry(R"("dtype":"F32","data_offsets":[0,4])"), 4),
       "has no \"shape\""},
      {File(entry(R"("dtype":"F31","shape":[],"data_offsets":[0,4])"), 4),
       "has dtype \"F31\"; known are BOOL"},
      {File(entry(R"("dtype":4,"shape":[],"data_offsets":[0,4])"), 4),
       "has dtype 4"},
      {File(entry(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), 4),
       "a shape that is no array"},
      {File(entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4),
       "the shape holds -1"},
      {File(entry(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4),
       "the shape holds 1.0"},
      {File(entry(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), 4),
       "the shape holds \"1\""},
      {File(
           entry(
               R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4])"),
           4),
       "the shape holds 18446744073709551615"},
      {File(
           entry(
               R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"),
           4),
       "more bytes than 2^63 - 1"},
      {File(
           entry(
               R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"),
           0),
       "more bytes than 2^63 - 1"},
      {File(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4),
       "no array of two"},
      {File(entry(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), 4),
       "data_offsets holds -4"},
      {File(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4),
       "takes 4 bytes"},
      {File(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
       "takes 8 bytes"},
      {File(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1)"),
            4),
       "an unknown key \"more\""},
      {File(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8),
       "behind a gap"},
      {File(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 3),
       "truncated"},
      {File(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 5),
       "trailing bytes"},
      {File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            8),
       "inside the one before"},
      {File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            4),
       "the key \"a\" appears twice"},
      {File(
           entry(
               R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"),
           4),
       "the key \"dtype\" appears twice"},
      {File(entry(R"("dtype":"F32","shape":[[[[1]]]],"data_offsets":[0,4])"),
            4),
       "nested too deeply"},
      {File(entry(R"("dtype":{"x":{}},"shape":[1],"data_offsets":[0,4])"), 4),
       "nested too deeply"},
      {File(R"({"__metadata__":{"a":1}})", 0),
       "__metadata__ \"a\" is no string"},
      {File(R"({"__metadata__":"x"})", 0), "__metadata__ is no JSON object"},
      {File(R"({"__metadata__":{"a":"x","a":"y"}})", 0), "appears twice"},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<int64_t> result = Parse(c.file);
    ASSERT_FALSE(result.ok()) << c.file;
    EXPECT_TRUE(absl::StrContains(result.status().message(), c.message))
        << result.status() << "\n"
        << c.file;
  }
}

TEST(SafetensorsTest, DeepNestingDoesNotOverflowTheStack) {
  const int depth = 2'000'000;
  EXPECT_FALSE(Parse(File("{\"a\":" + std::string(depth, '[') +
                              std::string(depth, ']') + "}",
                          0))
                   .ok());
}

TEST(SafetensorsTest, OpenNamesTheFile) {
  EXPECT_EQ(SafetensorsFile::Open(Path("missing.safetensors")).status().code(),
            absl::StatusCode::kNotFound);
  const std::string path = Path("bad.safetensors");
  std::ofstream(path) << "short";
  const absl::Status status = SafetensorsFile::Open(path).status();
  EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
  EXPECT_FALSE(SafetensorsFile::Open(testing::TempDir()).ok());
  std::ofstream(Path("zero.safetensors")).flush();
  EXPECT_FALSE(SafetensorsFile::Open(Path("zero.safetensors")).ok());
}

TEST(SafetensorsTest, ReadsWhatOthersWrote) {
  const auto file =
      SafetensorsFile::Open("tests/fixtures/gpt2_tied/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const SafetensorsEntry* wte = (*file)->Find("wte.weight");
  ASSERT_NE(wte, nullptr);
  EXPECT_EQ(wte->shape, (Dims{131, 48}));
  std::vector<float> values(48);
  ReadAsFloat(*wte->dtype, (*file)->Data(*wte), 48, absl::MakeSpan(values));
  for (float value : values) {
    EXPECT_TRUE(std::abs(value) > 0 && std::abs(value) < 1) << value;
  }
}

TEST(SafetensorsTest, ReadAsFloatConverts) {
  const double doubles[] = {1.5, -2.25, 1e300, 1 + 0x1p-24 + 0x1p-40};
  float out[3];
  ReadAsFloat(DType::kF64, Bytes(doubles, sizeof(doubles)), 1,
              absl::MakeSpan(out));
  EXPECT_EQ(out[0], -2.25f);
  EXPECT_EQ(out[1], std::numeric_limits<float>::infinity());
  EXPECT_EQ(out[2], 1 + 0x1p-23f);
  // Unaligned.
  std::string text = "x";
  for (float value : {0.5f, -3.0f}) {
    const BFloat16 b(value);
    text.append(reinterpret_cast<const char*>(&b), 2);
  }
  ReadAsFloat(DType::kBF16, absl::string_view(text).substr(1), 0,
              absl::MakeSpan(out, 2));
  EXPECT_EQ(out[0], 0.5f);
  EXPECT_EQ(out[1], -3.0f);
  const Float16 half(0.1f);
  ReadAsFloat(DType::kF16, Bytes(&half, 2), 0, absl::MakeSpan(out, 1));
  EXPECT_EQ(out[0], static_cast<float>(half));
  ReadAsFloat(DType::kF32, "", 0, {});
}

}  // namespace
}  // namespace shardgraph
