#include "tools/text/tokenizer.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/text/tokenizer_json.h"
#include "tools/text/unicode.h"

namespace shardgraph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kFixtures[] = "tests/fixtures/tokenizers/";

std::string Fixture(const std::string& name) {
  const auto text = ReadWholeFile(kFixtures + name);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

std::unique_ptr<Tokenizer> Load(const std::string& name) {
  auto tokenizer = LoadTokenizer(kFixtures + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer,
                            absl::string_view text) {
  std::vector<int32_t> tokens;
  tokenizer.Encode(text, &tokens);
  return tokens;
}

template <typename T>
T Take(const std::string& bytes, size_t* at) {
  T value;
  std::memcpy(&value, bytes.data() + *at, sizeof(T));
  *at += sizeof(T);
  return value;
}

std::vector<std::string> FixtureStrings() {
  const std::string bytes = Fixture("strings.bin");
  size_t at = 0;
  std::vector<std::string> strings(Take<uint32_t>(bytes, &at));
  for (std::string& string : strings) {
    const uint32_t size = Take<uint32_t>(bytes, &at);
    string = bytes.substr(at, size);
    at += size;
  }
  EXPECT_EQ(at, bytes.size());
  return strings;
}

uint64_t Fnv(const std::vector<int32_t>& tokens) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (static_cast<uint32_t>(token) >> shift & 255)) *
             0x100000001b3;
  }
  return hash;
}

std::string Hex(const std::string& text) {
  std::string hex;
  for (const unsigned char c : text)
    absl::StrAppend(&hex, absl::Hex(c, absl::kZeroPad2), " ");
  return hex;
}

// Every tokenizer with the strings of tokenizer_fixtures.py.
class ReferenceTest : public testing::TestWithParam<const char*> {};

TEST_P(ReferenceTest, SameTokensForEveryString) {
  const std::string file = GetParam();
  const auto tokenizer = Load(file);
  const std::vector<std::string> strings = FixtureStrings();
  EXPECT_GE(strings.size(), 2000u);
  const std::string expected =
      Fixture(absl::StrCat(file.substr(0, file.find('.')), ".tokens.bin"));
  ASSERT_EQ(expected.size(), strings.size() * 12);
  size_t at = 0;
  int wrong = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::vector<int32_t> tokens = Encode(*tokenizer, strings[i]);
    const uint32_t count = Take<uint32_t>(expected, &at);
    const uint64_t hash = Take<uint64_t>(expected, &at);
    if (tokens.size() == count && Fnv(tokens) == hash) continue;
    if (++wrong <= 5) {
      ADD_FAILURE() << file << " string " << i << ": " << tokens.size()
                    << " tokens, not " << count << ", for "
                    << Hex(strings[i].substr(0, 100)) << "\n"
                    << testing::PrintToString(tokens);
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << strings.size();
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, ReferenceTest,
                         testing::Values("gpt2.json", "llama3.json",
                                         "qwen2.json", "spm_bpe.model",
                                         "spm_unigram.model"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{".", "_"}});
                         });

TEST(TokenizerTest, DecodesWhatItEncodes) {
  for (const std::string& string : FixtureStrings()) {
    const std::string text = WellFormedUtf8(string);
    for (const char* name : {"gpt2.json", "llama3.json"}) {
      static const auto* tokenizers =
          new std::map<std::string, std::unique_ptr<Tokenizer>>([] {
            std::map<std::string, std::unique_ptr<Tokenizer>> map;
            map["gpt2.json"] = Load("gpt2.json");
            map["llama3.json"] = Load("llama3.json");
            return map;
          }());
      const Tokenizer& tokenizer = *tokenizers->at(name);
      EXPECT_EQ(tokenizer.Decode(Encode(tokenizer, string)), text);
    }
  }
  const auto qwen = Load("qwen2.json");
  EXPECT_EQ(qwen->Decode(Encode(*qwen, "e\u0301")), "\u00e9");
  EXPECT_EQ(qwen->Decode({-1, 1 << 30}), "");
  const auto spm = Load("spm_bpe.model");
  EXPECT_EQ(spm->Decode(Encode(*spm, "a  b\n\x01")), " a  b\n\x01");
  EXPECT_EQ(spm->Decode({0, 1, 2, -1, 1 << 30}), " \u2047 ");
}

TEST(TokenizerTest, KnowsWhatIsAroundAText) {
  const auto gpt2 = Load("gpt2.json"), llama3 = Load("llama3.json"),
             spm = Load("spm_bpe.model");
  EXPECT_THAT(gpt2->Prefix(), ElementsAre());
  EXPECT_EQ(gpt2->Decode({*gpt2->EndOfText()}), "<|endoftext|>");
  EXPECT_EQ(llama3->Decode(llama3->Prefix()), "<|begin_of_text|>");
  EXPECT_EQ(llama3->Decode({*llama3->EndOfText()}), "<|end_of_text|>");
  EXPECT_THAT(spm->Prefix(), ElementsAre(1));
  EXPECT_EQ(spm->EndOfText(), 2);
  EXPECT_EQ(MakeByteTokenizer()->EndOfText(), std::nullopt);
  for (const auto* tokenizer : {gpt2.get(), llama3.get(), spm.get()}) {
    EXPECT_TRUE(tokenizer->MayCut("x\n", "y"));
    EXPECT_FALSE(tokenizer->MayCut("x\n", " y"));
    EXPECT_FALSE(tokenizer->MayCut("x\n", "\n"));
    EXPECT_FALSE(tokenizer->MayCut("x ", "y"));
  }
}

TEST(TokenizerTest, CutsDoNotChangeTokens) {
  std::string text;
  for (const std::string& string : FixtureStrings()) text += string + "\nx";
  for (const char* name : {"gpt2.json", "llama3.json", "qwen2.json"}) {
    const auto tokenizer = Load(name);
    const std::vector<int32_t> whole = Encode(*tokenizer, text);
    std::vector<int32_t> parts;
    size_t begin = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      if (text[i - 1] != '\n' ||
          !tokenizer->MayCut(text.substr(i - 1, 1), text.substr(i, 4)))
        continue;
      tokenizer->Encode(text.substr(begin, i - begin), &parts);
      begin = i;
    }
    tokenizer->Encode(text.substr(begin), &parts);
    EXPECT_TRUE(parts == whole) << name;
  }
}

TEST(TokenizerTest, WritesWhatItReads) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/description");
  for (const char* name : {"gpt2.json", "spm_unigram.model"}) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    const auto tokenizer = Load(name);
    std::ofstream(folder + "/" + tokenizer->FileName(), std::ios::binary)
        << tokenizer->Description();
    const auto again = LoadTokenizer(folder);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Encode(**again, "some text"), Encode(*tokenizer, "some text"));
  }
  std::filesystem::remove_all(folder);
  EXPECT_THAT(std::string(LoadTokenizer(folder).status().message()),
              HasSubstr("there is no tokenizer"));
  std::filesystem::create_directories(folder);
  // Hugging Face's form of a SentencePiece model, and the model itself.
  std::ofstream(folder + "/tokenizer.json") << "{\"model\": {}}";
  EXPECT_THAT(std::string(LoadTokenizer(folder).status().message()),
              HasSubstr("tokenizer.json: model.vocab is no object"));
  std::ofstream(folder + "/tokenizer.model", std::ios::binary)
      << Fixture("spm_bpe.model");
  EXPECT_TRUE(LoadTokenizer(folder).ok());
  std::ofstream(folder + "/broken.model") << "\x0a\x10not a model";
  EXPECT_THAT(
      std::string(LoadTokenizer(folder + "/broken.model").status().message()),
      HasSubstr("neither a tokenizer.json nor a SentencePiece model"));
}

TEST(TokenizerTest, RefusesWhatItDoesNotUnderstand) {
  const struct {
    const char* change;  // JSON merge patch of gpt2.json
    const char* message;
  } cases[] = {
      {R"({"foo": 1})", "tokenizer.foo is 1; this key is not understood"},
      {R"({"truncation": {"max_length": 3}})", "tokenizer.truncation is"},
      {R"({"model": {"type": "WordPiece"}})", "model.type is \"WordPiece\""},
      {R"({"model": {"dropout": 0.1}})", "model.dropout is 0.1"},
      {R"({"model": {"byte_fallback": true}})", "model.byte_fallback is true"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})",
       "model.end_of_word_suffix is \"</w>\""},
      {R"({"model": {"vocab": {"a": -1}}})", "the token of \"a\" is -1"},
      {R"({"model": {"vocab": {"a": 4294967296}}})", "the token of \"a\" is"},
      {R"({"model": {"vocab": {"a": 5}}})", "another piece has it too"},
      {R"({"model": {"vocab": {"a": null}}})",
       "no token for the byte 0x61 (\"a\")"},
      {R"({"model": {"merges": ["ab"]}})", "model.merges[0] is \"ab\""},
      {R"({"model": {"merges": ["a b c"]}})", "two pieces and a space"},
      {R"({"model": {"merges": [["a"]]}})", "it must be two pieces"},
      {R"({"model": {"merges": ["a zzz"]}})", "must be in model.vocab"},
      {R"({"normalizer": {"type": "Lowercase"}})", "NFC or none"},
      {R"({"normalizer": {"type": "Sequence", "normalizers": 3}})",
       "it has no list \"normalizers\""},
      {R"({"pre_tokenizer": null})", "it must end in ByteLevel"},
      {R"({"pre_tokenizer": {"type": "Whitespace"}})", "pre_tokenizer is"},
      {R"({"pre_tokenizer": {"type": "Sequence",
         "add_prefix_space": null, "trim_offsets": null, "use_regex": null,
         "pretokenizers": [
         {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"},
         {"type": "ByteLevel"}]}})",
       "\"(a\" is not understood: U_REGEX_MISMATCHED_PAREN"},
      {R"({"pre_tokenizer": {"type": "Sequence",
         "add_prefix_space": null, "trim_offsets": null, "use_regex": null,
         "pretokenizers": [
         {"type": "Split", "pattern": {"String": "a"}}]}})",
       "Regex is understood"},
      {R"({"pre_tokenizer": {"type": "Sequence",
         "add_prefix_space": null, "trim_offsets": null, "use_regex": null,
         "pretokenizers": [
         {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"}]}})",
       "pre_tokenizer.behavior is \"Removed\""},
      {R"({"decoder": {"type": "WordPiece"}})", "ByteLevel is understood"},
      {R"({"post_processor": {"type": "BertProcessing"}})",
       "post_processor is"},
      {R"({"post_processor": {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "<x>"}}]}})",
       "post_processor.single is"},
      {R"({"added_tokens": [{"id": 900, "content": "x", "lstrip": true}]})",
       "added_tokens[0].lstrip is true"},
      {R"({"added_tokens": [{"id": 5, "content": "xyz"}]})",
       "another piece has it too"},
      {R"({"added_tokens": [{"id": 900, "content": ""}]})",
       "an id and a content"},
  };
  const auto good = ParseJson(Fixture("gpt2.json"));
  for (const auto& c : cases) {
    auto json = good;
    json.merge_patch(ParseJson(c.change));
    const auto tokenizer = ParseTokenizerJson(JsonText(json));
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(c.message))
        << c.change;
  }
  EXPECT_FALSE(ParseTokenizerJson("").ok());
  EXPECT_FALSE(ParseTokenizerJson("[]").ok());
}

TEST(TokenizerTest, DigitsAndPrefixSpaces) {
  auto json = ParseJson(Fixture("gpt2.json"));
  const auto words = [&](const char* pre_tokenizer, const char* text) {
    json["model"]["merges"] = nlohmann::json::array();
    json["pre_tokenizer"] = ParseJson(pre_tokenizer);
    const auto tokenizer = ParseTokenizerJson(JsonText(json));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return (*tokenizer)->Decode(Encode(**tokenizer, text));
  };
  EXPECT_EQ(words(R"({"type": "ByteLevel", "add_prefix_space": true})",
                  "a<|endoftext|>b"),
            " a<|endoftext|> b");
  // A space before each part.
  const char* kDigits = R"({"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": %s},
      {"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}]})";
  EXPECT_EQ(words(absl::StrReplaceAll(kDigits, {{"%s", "true"}}).c_str(),
                  "x12\u0663y"),
            " x 1 2 \u0663 y");
  EXPECT_EQ(words(absl::StrReplaceAll(kDigits, {{"%s", "false"}}).c_str(),
                  "x12\u0663y"),
            " x 12\u0663 y");
}

TEST(UnicodeTest, WellFormedUtf8) {
  EXPECT_EQ(WellFormedUtf8("a\xed\xa0\x80z"), "a\ufffd\ufffd\ufffdz");
  EXPECT_EQ(WellFormedUtf8("\xf0\x9f\x98"), "\ufffd");
  EXPECT_EQ(WellFormedUtf8("\xc0\xaf"), "\ufffd\ufffd");
  EXPECT_EQ(WellFormedUtf8("\u00e9\U0001f600"), "\u00e9\U0001f600");
}

TEST(UnicodeTest, ARunawayExpressionEnds) {
  const auto splitter = RegexSplitter::Create("(a+)+b|a");
  ASSERT_TRUE(splitter.ok());
  std::string all;
  (*splitter)->Split(std::string(5000, 'a'), [&](absl::string_view piece) {
    absl::StrAppend(&all, piece);
  });
  EXPECT_EQ(all, std::string(5000, 'a'));
}

}  // namespace
}  // namespace shardgraph
