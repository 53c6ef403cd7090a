#include "tools/convert/convert.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/huggingface.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/checkpoint/test_world.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "kernels/internal_error.h"
#include "nlohmann/json.hpp"
#include "tools/interop/huggingface_config.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr char kFixtures[] = "tests/fixtures/interop/";
constexpr const char* kFamilies[] = {"gpt2",    "llama2", "llama3",
                                     "llama31", "qwen2",  "qwen3"};

// Name -> dtype, shape and bytes.
struct Stored {
  std::string dtype;
  Dims shape;
  std::string data;

  friend bool operator==(const Stored&, const Stored&) = default;
};

std::map<std::string, Stored> TensorsOf(const std::string& folder) {
  std::map<std::string, Stored> tensors;
  const auto opened = HuggingFaceFolder::Open(folder);
  EXPECT_TRUE(opened.ok()) << opened.status();
  if (!opened.ok()) return tensors;
  for (const auto& [name, stored] : (*opened)->tensors()) {
    tensors[name] = {stored.entry->dtype_name, stored.entry->shape,
                     std::string(stored.file->Data(*stored.entry))};
  }
  return tensors;
}

std::string Text(const std::string& path) {
  const auto text = ReadWholeFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

class ConvertTest : public testing::Test {
 protected:
  ConvertTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/convert_",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }
  void Run(const ConvertOptions& options) {
    const auto result = Convert(options);
    ASSERT_TRUE(result.ok()) << result.status();
  }
  std::string Error(const ConvertOptions& options) {
    const auto result = Convert(options);
    EXPECT_TRUE(IsWrongInput(result.status())) << result.status();
    return std::string(result.status().message());
  }

  const std::string folder_;
};

void ExpectSameModel(const std::string& folder, const std::string& fixture) {
  const auto spec = ReadHuggingFaceConfig(folder);
  const auto expected = ReadHuggingFaceConfig(fixture);
  ASSERT_TRUE(spec.ok() && expected.ok()) << spec.status();
  // config.json may leave out a head size that follows from others.
  ModelSpec want = *expected;
  if (want.has_llama() && want.llama().head_dim() == 0) {
    want.mutable_llama()->set_head_dim(want.llama().hidden_size() /
                                       want.llama().num_attention_heads());
  }
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*spec, want))
      << spec->DebugString();
}

// The same model; and what only generation needs is kept.
void ExpectSameConfig(const std::string& folder, const std::string& fixture) {
  ExpectSameModel(folder, fixture);
  const auto ours = ParseJson(Text(folder + "/config.json")),
             theirs = ParseJson(Text(fixture + "/config.json"));
  for (const char* key : {"bos_token_id", "eos_token_id", "architectures"})
    EXPECT_EQ(ours[key], theirs[key]) << key;
  EXPECT_EQ(ours["torch_dtype"], theirs["dtype"]);
}

TEST_F(ConvertTest, RoundTripOfEveryFamilyIsBitwise) {
  for (const std::string family : kFamilies) {
    SCOPED_TRACE(family);
    const std::string fixture = kFixtures + family;
    Run({.from = fixture, .to = Path(family + "_run")});
    Run({.from = Path(family + "_run"), .to = Path(family)});
    EXPECT_EQ(TensorsOf(Path(family)), TensorsOf(fixture));
    ExpectSameConfig(Path(family), fixture);
    EXPECT_EQ(Text(Path(family) + "/generation_config.json"),
              Text(fixture + "/generation_config.json"));
    // The very file that transformers wrote.
    const std::string file = "/model.safetensors";
    if (fs::exists(fixture + file)) {
      EXPECT_EQ(Text(Path(family) + file), Text(fixture + file));
    }
    // A checkpoint like any other.
    const auto manifest =
        ReadCheckpointManifest(*ResolveCheckpoint(Path(family + "_run")));
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(manifest->step(), 0);
  }
}

TEST_F(ConvertTest, ConfigsOfTransformers5SayTheSame) {
  for (const std::string family : kFamilies) {
    const std::string fixture = kFixtures + family;
    const auto expected = ReadHuggingFaceConfig(fixture);
    const auto spec = ParseHuggingFaceConfig(Text(fixture + "/config_v5.json"));
    ASSERT_TRUE(expected.ok() && spec.ok()) << spec.status();
    EXPECT_TRUE(
        google::protobuf::util::MessageDifferencer::Equals(*spec, *expected))
        << spec->DebugString();
  }
}

TEST_F(ConvertTest, SeveralFiles) {
  const std::string fixture = absl::StrCat(kFixtures, "llama31");
  Run({.from = fixture,
       .to = Path("to"),
       .format = "huggingface",
       .max_file_bytes = 3000});
  EXPECT_EQ(TensorsOf(Path("to")), TensorsOf(fixture));
  const auto index =
      ParseJson(Text(Path("to") + "/model.safetensors.index.json"));
  int64_t bytes = 0;
  for (const auto& [name, stored] : TensorsOf(fixture))
    bytes += stored.data.size();
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
  std::set<std::string> files;
  for (const auto& item : index["weight_map"].items())
    files.insert(item.value().get<std::string>());
  EXPECT_GE(files.size(), 4u);
  for (const std::string& file : files)
    EXPECT_LE(fs::file_size(Path("to") + "/" + file), 3000 + 2000) << file;
  EXPECT_FALSE(fs::exists(Path("to") + "/model.safetensors"));
}

TEST_F(ConvertTest, AnotherDType) {
  const std::string fixture = absl::StrCat(kFixtures, "gpt2");
  Run({.from = fixture,
       .to = Path("to"),
       .dtype = "BF16",
       .format = "huggingface"});
  const auto before = TensorsOf(fixture), after = TensorsOf(Path("to"));
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, stored] : after) {
    EXPECT_EQ(stored.dtype, "BF16");
    const std::string& wide = before.at(name).data;
    ASSERT_EQ(stored.data.size() * 2, wide.size());
    for (size_t i = 0; i < stored.data.size() / 2; ++i) {
      float value;
      uint16_t rounded;
      std::memcpy(&value, wide.data() + i * 4, 4);
      std::memcpy(&rounded, stored.data.data() + i * 2, 2);
      ASSERT_EQ(rounded, BFloat16(value).bits) << name << " " << i;
    }
  }
  EXPECT_THAT(Text(Path("to") + "/config.json"),
              HasSubstr("\"torch_dtype\": \"bfloat16\""));
}

TEST_F(ConvertTest, ModelsOfLlmC) {
  Run({.from = absl::StrCat(kFixtures, "gpt2_f32.bin"),
       .to = Path("f32"),
       .format = "huggingface"});
  EXPECT_EQ(TensorsOf(Path("f32")), TensorsOf(absl::StrCat(kFixtures, "gpt2")));
  Run({.from = absl::StrCat(kFixtures, "gpt2_bf16.bin"), .to = Path("run")});
  Run({.from = Path("run"), .to = Path("bf16")});
  Run({.from = absl::StrCat(kFixtures, "gpt2"),
       .to = Path("rounded"),
       .dtype = "BF16",
       .format = "huggingface"});
  EXPECT_EQ(TensorsOf(Path("bf16")), TensorsOf(Path("rounded")));

  const std::string good = Text(absl::StrCat(kFixtures, "gpt2_f32.bin"));
  const auto broken = [&](int field, int32_t value) {
    std::string text = good;
    std::memcpy(text.data() + field * 4, &value, 4);
    std::ofstream(Path("broken.bin"), std::ios::binary) << text;
    return Error({.from = Path("broken.bin"), .to = Path("never")});
  };
  EXPECT_THAT(broken(0, 1), HasSubstr("it starts with 1; a model starts"));
  EXPECT_THAT(broken(1, 4), HasSubstr("its version is 4"));
  EXPECT_THAT(broken(2, -1), HasSubstr("number 2 of its header is -1"));
  EXPECT_THAT(broken(4, 3), HasSubstr("it is truncated"));
  EXPECT_THAT(broken(4, 1), HasSubstr("bytes are left over"));
  EXPECT_THAT(broken(5, 3), HasSubstr("n_head"));
  EXPECT_THAT(broken(6, 1 << 30), HasSubstr("it is truncated"));
  EXPECT_THAT(broken(7, 60), HasSubstr("smaller than the vocabulary of 67"));
  std::ofstream(Path("short.bin")) << "abc";
  EXPECT_THAT(Error({.from = Path("short.bin"), .to = Path("never")}),
              HasSubstr("shorter than a header"));
  EXPECT_FALSE(fs::exists(Path("never")));
}

TEST_F(ConvertTest, LlamasOfLlmC) {
  const std::string fixture = absl::StrCat(kFixtures, "llama3");
  Run({.from = absl::StrCat(kFixtures, "llama3_f32.bin"),
       .to = Path("f32"),
       .format = "huggingface"});
  EXPECT_EQ(TensorsOf(Path("f32")), TensorsOf(fixture));
  ExpectSameModel(Path("f32"), fixture);
  Run({.from = absl::StrCat(kFixtures, "llama3_bf16.bin"), .to = Path("run")});
  Run({.from = Path("run"), .to = Path("bf16")});
  Run({.from = fixture,
       .to = Path("rounded"),
       .dtype = "BF16",
       .format = "huggingface"});
  EXPECT_EQ(TensorsOf(Path("bf16")), TensorsOf(Path("rounded")));

  const std::string good = Text(absl::StrCat(kFixtures, "llama3_f32.bin"));
  const auto broken = [&](int field, auto value) {
    std::string text = good;
    std::memcpy(text.data() + field * 4, &value, 4);
    std::ofstream(Path("broken.bin"), std::ios::binary) << text;
    return Error({.from = Path("broken.bin"), .to = Path("never")});
  };
  EXPECT_THAT(broken(1, 4), HasSubstr("its version is 4"));
  EXPECT_THAT(broken(2, 0), HasSubstr("(block size) is 0"));
  EXPECT_THAT(broken(4, 3), HasSubstr("it is truncated"));
  EXPECT_THAT(broken(4, 1), HasSubstr("bytes are left over"));
  EXPECT_THAT(broken(5, 3), HasSubstr("do not divide each other"));
  EXPECT_THAT(broken(6, 3), HasSubstr("do not divide each other"));
  EXPECT_THAT(broken(7, 1 << 30), HasSubstr("it is truncated"));
  EXPECT_THAT(broken(8, 1 << 30), HasSubstr("it is truncated"));
  EXPECT_THAT(broken(9, 2), HasSubstr("it must be 0 or 1"));
  EXPECT_THAT(broken(256, -1.0f), HasSubstr("multiplier is -1"));
  EXPECT_THAT(broken(257, 0.0f), HasSubstr("epsilon 0"));
  EXPECT_THAT(broken(258, std::nanf("")), HasSubstr("theta nan"));
  std::ofstream(Path("short.bin"), std::ios::binary) << good.substr(0, 2000);
  EXPECT_THAT(Error({.from = Path("short.bin"), .to = Path("never")}),
              HasSubstr("shorter than a Llama's header"));
}

// PEFT's adapters: in, merged as PEFT does, and out again.
TEST_F(ConvertTest, Adapters) {
  for (const std::string family : {"gpt2", "llama3"}) {
    SCOPED_TRACE(family);
    const std::string base = kFixtures + family, fixture = base + "_lora";
    const std::string run = Path(family + "_run"),
                      adapter = Path(family + "_lora"), merged = Path(family);
    Run({.from = base, .to = run, .adapter = fixture});
    Run({.from = run, .to = adapter, .format = "adapter"});
    EXPECT_EQ(Text(adapter + "/adapter_model.safetensors"),
              Text(fixture + "/adapter_model.safetensors"));
    const auto ours = ParseJson(Text(adapter + "/adapter_config.json")),
               theirs = ParseJson(Text(fixture + "/adapter_config.json"));
    for (const char* key :
         {"peft_type", "r", "lora_alpha", "lora_dropout", "fan_in_fan_out"})
      EXPECT_EQ(ours[key], theirs[key]) << key;
    EXPECT_EQ(ours["target_modules"].size(), family == "gpt2" ? 2u : 4u);

    Run({.from = run, .to = merged});
    const auto before = TensorsOf(base), after = TensorsOf(merged);
    const auto expected =
        SafetensorsFile::Open(fixture + "/merged.safetensors");
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(after.size(), before.size());
    for (const SafetensorsEntry& entry : (*expected)->entries()) {
      const int64_t n = NumElements(entry.shape);
      std::vector<float> want(n), got(n);
      ReadAsFloat(DType::kF32, (*expected)->Data(entry), 0,
                  absl::MakeSpan(want));
      ReadAsFloat(DType::kF32, after.at(entry.name).data, 0,
                  absl::MakeSpan(got));
      for (int64_t i = 0; i < n; ++i)
        ASSERT_NEAR(got[i], want[i], 1e-6) << entry.name << " " << i;
      EXPECT_NE(after.at(entry.name), before.at(entry.name));
    }
    int same = 0;
    for (const auto& [name, stored] : after) same += stored == before.at(name);
    EXPECT_EQ(same,
              static_cast<int>(after.size()) - (family == "gpt2" ? 2 : 4));
    Run({.from = base,
         .to = Path(family + "_at_once"),
         .format = "huggingface",
         .adapter = fixture});
    EXPECT_EQ(TensorsOf(Path(family + "_at_once")), after);
  }
}

TEST_F(ConvertTest, AdaptersThatDoNotFit) {
  const std::string base = absl::StrCat(kFixtures, "llama3"),
                    fixture = base + "_lora";
  fs::create_directories(Path("bad"));
  const auto refused = [&](const std::string& from, const std::string& to) {
    fs::copy(
        fixture, Path("bad"),
        fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    std::string text = Text(fixture + "/adapter_config.json");
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    std::ofstream(Path("bad/adapter_config.json")) << text;
    return Error({.from = base, .to = Path("never"), .adapter = Path("bad")});
  };
  EXPECT_THAT(refused("\"LORA\"", "\"IA3\""),
              HasSubstr("peft_type is \"IA3\"; \"LORA\" can be read"));
  EXPECT_THAT(refused("\"use_rslora\": false", "\"use_rslora\": true"),
              HasSubstr("use_rslora is true; this is not understood"));
  EXPECT_THAT(refused("\"none\"", "\"all\""), HasSubstr("bias is \"all\""));
  EXPECT_THAT(refused("\"r\": 3", "\"r\": 0"), HasSubstr("r is 0"));
  EXPECT_THAT(refused("\"r\": 3", "\"r\": 2.5"), HasSubstr("r is 2.5"));
  EXPECT_THAT(refused("\"r\": 3", "\"r\": 4"), HasSubstr("there is no tensor"));
  EXPECT_THAT(refused("\"lora_alpha\": 6", "\"alpha\": 6"),
              HasSubstr("lora_alpha is missing"));
  EXPECT_THAT(refused("\"r\": 3", "r"), HasSubstr("no JSON object"));
  EXPECT_THAT(Error({.from = base,
                     .to = Path("never"),
                     .adapter = absl::StrCat(kFixtures, "gpt2_lora")}),
              HasSubstr("adapter_model.safetensors"));
  EXPECT_THAT(Error({.from = base, .to = Path("never"), .adapter = folder_}),
              HasSubstr("adapter_config.json"));
  EXPECT_THAT(Error({.from = base, .to = Path("never"), .format = "adapter"}),
              HasSubstr("has none (model.lora)"));
  EXPECT_FALSE(fs::exists(Path("never")));
}

// What a run has saved, moments and all.
TEST_F(ConvertTest, CheckpointOfATraining) {
  const std::string fixture = absl::StrCat(kFixtures, "qwen3");
  TrainConfig config;
  *config.mutable_model() = *ReadHuggingFaceConfig(fixture);
  TestWorld world(1, 1, TestUse::kTrain, config);
  ASSERT_TRUE(
      LoadHuggingFaceWeights(fixture, *world.plan, 0, world.executors[0]).ok());
  SaveOptions save;
  save.folder = Path("checkpoints");
  save.step = 7;
  const absl::Status saved = SaveCheckpoint(world.Rank(0), save);
  ASSERT_TRUE(saved.ok()) << saved;
  Run({.from = folder_, .to = Path("to")});
  EXPECT_EQ(TensorsOf(Path("to")), TensorsOf(fixture));

  // Damaged where weights are: the first of the data.
  for (const auto& file :
       fs::directory_iterator(Path("checkpoints/step_0000007"))) {
    if (file.path().extension() != ".safetensors") continue;
    std::string text = Text(file.path().string());
    uint64_t header = 0;
    std::memcpy(&header, text.data(), sizeof(header));
    text[sizeof(header) + header] ^= 1;
    std::ofstream(file.path(), std::ios::binary) << text;
  }
  EXPECT_THAT(Error({.from = folder_, .to = Path("again")}),
              HasSubstr("the file is damaged"));
  EXPECT_FALSE(fs::exists(Path("again/config.json")));
}

TEST_F(ConvertTest, SaysWhatIsWrong) {
  const std::string fixture = absl::StrCat(kFixtures, "gpt2");
  EXPECT_THAT(Error({.from = Path("nowhere"), .to = Path("to")}),
              HasSubstr("--from is " + Path("nowhere")));
  EXPECT_THAT(Error({.from = folder_, .to = Path("to")}),
              HasSubstr("there is no checkpoint in"));
  EXPECT_THAT(Error({.from = fixture, .to = Path("to"), .dtype = "I8"}),
              HasSubstr("--dtype is \"I8\"; it must be F32, BF16 or F16"));
  EXPECT_THAT(Error({.from = fixture, .to = Path("to"), .format = "gguf"}),
              HasSubstr("--format is \"gguf\""));
  std::ofstream(Path("file")) << "x";
  EXPECT_THAT(Error({.from = fixture, .to = folder_}),
              HasSubstr("holds files already"));
  EXPECT_THAT(Error({.from = fixture, .to = Path("file")}),
              HasSubstr("name another folder"));
  // A model that no config.json can describe.
  const auto refused = [](const std::string& text, const std::string& message) {
    ModelSpec spec;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec));
    EXPECT_THAT(
        std::string(
            HuggingFaceConfigText(spec, DType::kF32, "").status().message()),
        HasSubstr(message));
  };
  refused("module {}", "model.module");
  refused("llama { qk_norm: true }", "model.llama.qk_norm is");
  refused("llama { model_type: 'qwen2' }", "model.llama.qkv_bias is");
  refused("llama { model_type: 'qwen2' qkv_bias: true mlp_bias: true }",
          "model.llama.mlp_bias is");
  refused("llama { model_type: 'mistral' attention_bias: true }",
          "model.llama.attention_bias is");
}

TEST(ConvertFlags, AreChecked) {
  const auto error = [](const std::vector<std::string>& arguments) {
    return std::string(ParseConvertFlags(arguments).status().message());
  };
  EXPECT_THAT(error({}), HasSubstr("--from is missing"));
  EXPECT_THAT(error({"--from=a"}), HasSubstr("--to is missing"));
  EXPECT_THAT(error({"--from=a", "--to=b", "c"}),
              HasSubstr("unexpected argument \"c\""));
  EXPECT_THAT(error({"--from=a", "--to=b", "--max_file_bytes=0"}),
              HasSubstr("--max_file_bytes is 0"));
}

}  // namespace
}  // namespace shardgraph
