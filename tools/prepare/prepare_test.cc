#include "tools/prepare/prepare.h"

#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "fsdp/data/token_file.h"
#include "fsdp/files/durable_file.h"
#include "gtest/gtest.h"
#include "tools/program/program.h"
#include "tools/text/tokenizer.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

class PrepareTest : public testing::Test {
 protected:
  PrepareTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  std::string Path(const std::string& name) { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }
  absl::StatusOr<PrepareResult> Run(std::vector<std::string> inputs) {
    PrepareOptions options;
    options.inputs = std::move(inputs);
    options.output = Path("out");
    return Prepare(options);
  }
  // The tokens of an output file as text.
  std::string Text(const std::string& name) {
    const auto file = TokenFile::Open(Path("out/" + name));
    EXPECT_TRUE(file.ok()) << file.status();
    std::vector<int32_t> tokens((*file)->size());
    EXPECT_TRUE((*file)->Read(0, 256, absl::MakeSpan(tokens)).ok());
    return MakeByteTokenizer()->Decode(tokens);
  }

  const std::string folder_;
};

// Every byte value occurs, no two blocks are alike.
std::string Bytes(int64_t size) {
  std::string text(size, '\0');
  uint32_t state = 1;
  for (char& c : text) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

void Split(const std::string& text, int64_t block, std::string* train,
           std::string* held_out) {
  for (int64_t i = 0; i * block < static_cast<int64_t>(text.size()); ++i)
    *((i + 1) % 25 == 0 ? held_out : train) += text.substr(i * block, block);
}

TEST_F(PrepareTest, HoldsOutEvery25thBlock) {
  const std::string text = Bytes(51 * 65536 + 777);
  const auto result = Run({Write("a.txt", text)});
  ASSERT_TRUE(result.ok()) << result.status();
  std::string train, held_out;
  Split(text, 65536, &train, &held_out);
  EXPECT_EQ(held_out.size(), 2u * 65536);
  EXPECT_TRUE(Text("train.bin") == train);
  EXPECT_TRUE(Text("val.bin") == held_out);
  EXPECT_EQ(result->files, 1);
  EXPECT_EQ(result->bytes, static_cast<int64_t>(text.size()));
  EXPECT_EQ(result->train_tokens, static_cast<int64_t>(train.size()));
  EXPECT_EQ(result->validation_tokens, static_cast<int64_t>(held_out.size()));
  EXPECT_EQ(result->vocab_size, 256);
  // llm.c's header: magic, version, count, and u16 tokens.
  EXPECT_EQ(fs::file_size(Path("out/train.bin")), 1024 + 2 * train.size());
  const auto tokenizer = LoadTokenizer(Path("out"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 256);
  for (const auto& entry : fs::directory_iterator(Path("out")))
    EXPECT_FALSE(absl::EndsWith(entry.path().string(), ".tmp"));
}

TEST_F(PrepareTest, FilesAreTakenBackToBackAndGlobsSorted) {
  const std::string text = Bytes(30 * 65536);
  // Cuts inside blocks; an empty file; a name that looks like a glob.
  Write("b2.txt", text.substr(1000001, 500));
  Write("b1.txt", text.substr(99, 1000001 - 99));
  Write("b3.txt", "");
  Write("[x].txt", text.substr(1000501));
  const auto result = Run(
      {Write("a.txt", text.substr(0, 99)), Path("b?.txt"), Path("[x].txt")});
  ASSERT_TRUE(result.ok()) << result.status();
  std::string train, held_out;
  Split(text, 65536, &train, &held_out);
  EXPECT_TRUE(Text("train.bin") == train);
  EXPECT_TRUE(Text("val.bin") == held_out);
  EXPECT_EQ(result->files, 5);
}

TEST_F(PrepareTest, ShortInputsHaveSmallerBlocks) {
  for (int64_t size : {25, 49, 1000, 25 * 65536 - 1}) {
    const std::string text = Bytes(size);
    ASSERT_TRUE(Run({Write("a.txt", text)}).ok());
    std::string train, held_out;
    Split(text, size / 25, &train, &held_out);
    EXPECT_GE(held_out.size(), static_cast<size_t>(size / 25));
    EXPECT_TRUE(Text("train.bin") == train) << size;
    EXPECT_TRUE(Text("val.bin") == held_out) << size;
  }
}

// Blocks end with lines, and documents with the tokenizer's token.
TEST_F(PrepareTest, WordsOfATokenizer) {
  constexpr char kTokenizer[] = "tests/fixtures/tokenizers/gpt2.json";
  std::set<std::string> lines;
  std::string texts[2];
  for (int i = 0; i < 2000; ++i) {
    const std::string line =
        absl::StrCat("line ", i, " of some text, caf\u00e9", i % 7, "\n");
    lines.insert(line);
    texts[i / 1200] += line;
  }
  texts[0].pop_back();  // the first file does not end in a line end
  const auto run = [&](const std::string& tokenizer) {
    PrepareOptions options;
    options.inputs = {Write("a.txt", texts[0]), Write("b.txt", texts[1])};
    options.output = Path("out");
    options.tokenizer = tokenizer;
    return Prepare(options);
  };
  const auto result = run(kTokenizer);
  ASSERT_TRUE(result.ok()) << result.status();
  const auto tokenizer = LoadTokenizer(Path("out"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(result->end_of_text, (*tokenizer)->EndOfText());
  std::string all[2];
  for (int i = 0; i < 2; ++i) {
    const auto file =
        TokenFile::Open(Path(i == 0 ? "out/train.bin" : "out/val.bin"));
    ASSERT_TRUE(file.ok()) << file.status();
    std::vector<int32_t> tokens((*file)->size());
    ASSERT_TRUE(
        (*file)
            ->Read(0, (*tokenizer)->vocab_size(), absl::MakeSpan(tokens))
            .ok());
    all[i] = (*tokenizer)->Decode(tokens);
    // What the tokenizer makes of the whole, though blocks were encoded alone.
    std::vector<int32_t> again;
    (*tokenizer)->Encode(all[i], &again);
    EXPECT_TRUE(again == tokens);
  }
  EXPECT_EQ(all[0].size() + all[1].size(),
            texts[0].size() + texts[1].size() + 2 * strlen("<|endoftext|>"));
  const double share = 1.0 * all[1].size() / (all[0].size() + all[1].size());
  EXPECT_NEAR(share, 1.0 / 25, 0.01);
  for (std::string& text : all) {
    text = absl::StrReplaceAll(text, {{"<|endoftext|>", "\n"}});
    for (const absl::string_view line :
         absl::StrSplit(text, '\n', absl::SkipEmpty()))
      EXPECT_EQ(lines.count(absl::StrCat(line, "\n")), 1u) << line;
  }

  // Tokens beyond 16 bits.
  std::string json = *ReadWholeFile(kTokenizer);
  json = absl::StrReplaceAll(
      json, {{"\"added_tokens\":[",
              "\"added_tokens\":[{\"id\":70000,\"content\":\"<|end_of_text|>"
              "\"},"}});
  const auto wide = run(Write("wide.json", json));
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(wide->vocab_size, 70001);
  EXPECT_EQ(fs::file_size(Path("out/train.bin")),
            1024 + 4 * wide->train_tokens);
  const auto file = TokenFile::Open(Path("out/train.bin"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size(), wide->train_tokens);
}

TEST_F(PrepareTest, ReportsProgress) {
  PrepareOptions options;
  options.inputs = {Write("a.txt", Bytes(3 << 20))};
  options.output = Path("out");
  int64_t last = 0, calls = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 3 << 20);
    last = done;
    ++calls;
  };
  ASSERT_TRUE(Prepare(options).ok());
  EXPECT_EQ(last, 3 << 20);
  EXPECT_GE(calls, 3);
}

TEST_F(PrepareTest, BadInputsAreNamed) {
  Write("empty.txt", "");
  Write("short.txt", std::string(24, 'x'));
  Write("good.txt", std::string(100, 'x'));
  const int32_t magic = 20240520;
  Write("tokens.bin", std::string(reinterpret_cast<const char*>(&magic), 4) +
                          std::string(2000, '\0'));
  const struct {
    std::string input;
    std::string message;
  } cases[] = {
      {"empty.txt", "empty.txt is empty"},
      {"short.txt", "has only 24 bytes"},
      {"missing.txt", "missing.txt: No such file"},
      {"*.md", "no file matches"},
      {".", "it is a folder"},
      {"tokens.bin", "it is a token file already"},
  };
  for (const auto& c : cases) {
    const auto result = Run({Path(c.input)});
    ASSERT_FALSE(result.ok()) << c.input;
    EXPECT_EQ(ExitStatus(result.status()), 2) << result.status();
    EXPECT_TRUE(absl::StrContains(result.status().message(), c.message))
        << result.status();
    EXPECT_FALSE(fs::exists(Path("out/train.bin")));
    EXPECT_FALSE(fs::exists(Path("out/train.bin.tmp")));
  }
  PrepareOptions options;
  options.inputs = {Path("good.txt")};
  options.output = Path("good.txt/below");
  EXPECT_EQ(ExitStatus(Prepare(options).status()), 2);
  EXPECT_TRUE(absl::StrContains(Prepare(options).status().message(),
                                "cannot make the output folder"));
  // A folder where a file is to be written.
  options.output = Path("taken");
  fs::create_directories(Path("taken/train.bin.tmp"));
  EXPECT_EQ(ExitStatus(Prepare(options).status()), 2);
  options.output = Path("out");
  options.tokenizer = "words";
  EXPECT_TRUE(absl::StrContains(Prepare(options).status().message(),
                                "there is no tokenizer \"words\""));
}

TEST_F(PrepareTest, Flags) {
  setenv("BUILD_WORKING_DIRECTORY", "/there", 1);
  const auto options = ParsePrepareFlags(
      {"--input=a.txt", "/b.txt", "--output", "out", "c*.txt", "--input", "d"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->inputs,
            (std::vector<std::string>{"/there/a.txt", "/b.txt", "/there/c*.txt",
                                      "/there/d"}));
  EXPECT_EQ(options->output, "/there/out");
  EXPECT_EQ(options->tokenizer, "bytes");
  unsetenv("BUILD_WORKING_DIRECTORY");
  EXPECT_EQ(ParsePrepareFlags({"a", "--output=o", "--tokenizer=t"})->tokenizer,
            "t");

  const struct {
    std::vector<std::string> arguments;
    std::string message;
  } cases[] = {
      {{}, "--input is missing"},
      {{"a.txt"}, "--output is missing"},
      {{"--output=o"}, "--input is missing"},
      {{"--inptu=a", "--output=o"}, "did you mean --input?"},
      {{"a", "--output"}, "--output has no value"},
      {{"a", "--output="}, "--output is missing"},
      {{"--input=", "--output=o"}, "--input is missing"},
      {{"-input", "d", "--output=o"}, "two dashes"},
  };
  for (const auto& c : cases) {
    const auto result = ParsePrepareFlags(c.arguments);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(ExitStatus(result.status()), 2);
    EXPECT_TRUE(absl::StrContains(result.status().message(), c.message))
        << result.status();
  }
}

TEST_F(PrepareTest, Tokenizers) {
  const auto bytes = MakeByteTokenizer();
  const std::string text = Bytes(4096);
  std::vector<int32_t> tokens = {7};
  bytes->Encode(text, &tokens);
  EXPECT_EQ(tokens.size(), 4097u);
  EXPECT_EQ(bytes->Decode(absl::MakeConstSpan(tokens).subspan(1)), text);
  EXPECT_EQ(bytes->Decode({72, 256, -1, 105}), "Hi");
  EXPECT_TRUE(LoadTokenizer("bytes").ok());
  EXPECT_TRUE(LoadTokenizer(Write("t.json", bytes->Description())).ok());
  for (const char* bad :
       {"", "[]", "{}", "{\"model\": 3}", "{\"model\": {\"type\": \"BPE\"}}"}) {
    const auto result = LoadTokenizer(Write("bad.json", bad));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(result.status().message(), "bad.json"));
  }
}

}  // namespace
}  // namespace shardgraph
