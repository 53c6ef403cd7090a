#include "fsdp/checkpoint/huggingface.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/checkpoint/test_world.h"
#include "fsdp/files/durable_file.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "graph/model/module.h"
#include "gtest/gtest.h"
#include "tools/interop/huggingface_config.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

constexpr char kFixtures[] = "tests/fixtures/";
constexpr const char* kModels[] = {"gpt2_tied", "gpt2_untied",
                                   "llama_gqa_untied", "llama_tied"};

void ExpectSpec(const std::string& config, const std::string& text) {
  const auto spec = ParseHuggingFaceConfig(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ModelSpec expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &expected));
  EXPECT_TRUE(
      google::protobuf::util::MessageDifferencer::Equals(*spec, expected))
      << spec->DebugString();
}

TEST(HuggingFaceConfigTest, ReadsGpt2) {
  // The hub's gpt2, shortened.
  ExpectSpec(R"({"activation_function": "gelu_new",
      "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
      "bos_token_id": 50256, "embd_pdrop": 0.2, "eos_token_id": [50256],
      "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
      "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
      "n_inner": null, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
      "summary_activation": null, "summary_type": "cls_index",
      "task_specific_params": {"text-generation": {"max_length": 50}},
      "vocab_size": 50257})",
             R"(gpt2 { vocab_size: 50257 n_positions: 1024 n_embd: 768
                n_layer: 12 n_head: 12 activation_function: "gelu_new"
                layer_norm_epsilon: 1e-5 resid_pdrop: 0.1 embd_pdrop: 0.2
                attn_pdrop: 0.1 tie_word_embeddings: true
                initializer_range: 0.02 })");
}

// Llama-3.1's keys in version 4 and 5, Qwen2's, Qwen3's.
constexpr char kSizes[] =
    R"("vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
       "num_hidden_layers": 2, "num_attention_heads": 4,
       "max_position_embeddings": 512, "rms_norm_eps": 1e-5)";
constexpr char kSizesText[] =
    R"(vocab_size: 100 hidden_size: 64 intermediate_size: 96
       num_hidden_layers: 2 num_attention_heads: 4
       max_position_embeddings: 512 rms_norm_eps: 1e-5
       initializer_range: 0.02)";

std::string Config(const std::string& rest) {
  return absl::StrCat("{", kSizes, rest, "}");
}

TEST(HuggingFaceConfigTest, ReadsLlama) {
  const std::string expected = absl::StrCat(
      "llama { model_type: 'llama' num_key_value_heads: 2 rope_theta: 500000 "
      "rope_scaling { factor: 8 low_freq_factor: 1 high_freq_factor: 4 "
      "original_max_position_embeddings: 8192 } ",
      kSizesText, "}");
  ExpectSpec(Config(R"(, "model_type": "llama", "num_key_value_heads": 2,
      "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
      "original_max_position_embeddings": 8192}, "torch_dtype": "bfloat16",
      "attention_bias": false, "mlp_bias": false, "pretraining_tp": 1)"),
             expected);
  ExpectSpec(Config(R"(, "model_type": "llama", "num_key_value_heads": 2,
      "rope_parameters": {"factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "rope_type": "llama3", "rope_theta": 500000,
      "original_max_position_embeddings": 8192}, "dtype": "bfloat16")"),
             expected);
  ExpectSpec(
      Config(R"(, "model_type": "llama", "num_key_value_heads": null,
             "attention_bias": true, "mlp_bias": true, "head_dim": 16,
             "tie_word_embeddings": true, "rope_scaling": null)"),
      absl::StrCat("llama { model_type: 'llama' rope_theta: 10000 head_dim: 16 "
                   "tie_word_embeddings: true attention_bias: true "
                   "mlp_bias: true ",
                   kSizesText, "}"));
}

TEST(HuggingFaceConfigTest, ReadsQwenAndMistral) {
  ExpectSpec(Config(R"(, "model_type": "qwen2", "num_key_value_heads": 2,
             "rope_theta": 1000000.0, "sliding_window": 4096,
             "use_sliding_window": false, "max_window_layers": 21,
             "tie_word_embeddings": true)"),
             absl::StrCat("llama { model_type: 'qwen2' num_key_value_heads: 2 "
                          "rope_theta: 1000000 qkv_bias: true "
                          "tie_word_embeddings: true ",
                          kSizesText, "}"));
  ExpectSpec(Config(R"(, "model_type": "qwen3", "num_key_value_heads": 2,
             "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
             "layer_types": ["full_attention", "full_attention"])"),
             absl::StrCat("llama { model_type: 'qwen3' num_key_value_heads: 2 "
                          "rope_theta: 500000 head_dim: 128 qk_norm: true ",
                          kSizesText, "}"));
  ExpectSpec(Config(R"(, "model_type": "mistral", "num_key_value_heads": 2,
             "sliding_window": null)"),
             absl::StrCat("llama { model_type: 'mistral' "
                          "num_key_value_heads: 2 rope_theta: 10000 ",
                          kSizesText, "}"));
}

TEST(HuggingFaceConfigTest, RefusesWhatItDoesNotUnderstand) {
  const std::string llama = ", \"model_type\": \"llama\"";
  const std::string qwen2 =
      ", \"model_type\": \"qwen2\", \"num_key_value_heads\": 2";
  const struct {
    std::string config;
    std::string message;
  } cases[] = {
      {"", "it is no JSON"},
      {"[]", "it is no JSON object"},
      {"{}", "model_type is \"\"; gpt2, llama"},
      {Config(", \"model_type\": \"gemma2\""), "model_type is \"gemma2\""},
      {"{\"model_type\": \"llama\"}", "vocab_size is missing"},
      {Config(llama + ", \"attn_logit_softcapping\": 50.0"),
       "attn_logit_softcapping is 50.0; this key is not understood"},
      {Config(llama + ", \"quantization_config\": {\"bits\": 4}"),
       "quantization_config is {\"bits\":4}; this key"},
      {Config(llama + ", \"hidden_act\": \"gelu\""),
       "hidden_act is \"gelu\"; it must be \"silu\""},
      {Config(llama + ", \"head_dim\": \"8\""), "head_dim is \"8\""},
      {Config(llama + ", \"head_dim\": -8"), "head_dim is -8"},
      {Config(llama + ", \"rope_theta\": \"big\""), "rope_theta is \"big\""},
      {Config(llama + ", \"rope_scaling\": 2"), "rope_scaling is 2"},
      {Config(llama + R"(, "rope_scaling": {"type": "linear", "factor": 2})"),
       "rope_scaling.type is \"linear\""},
      {Config(llama + R"(, "rope_parameters": {"rope_type": "yarn"})"),
       "rope_parameters.rope_type is \"yarn\""},
      {Config(llama + R"(, "rope_scaling": {"rope_type": "llama3"})"),
       "rope_scaling.factor is missing"},
      {Config(llama + R"(, "rope_scaling": {"rope_type": "default", "x": 2})"),
       "rope_scaling.x is 2; this key"},
      {Config(llama + ", \"tie_word_embeddings\": 1"),
       "tie_word_embeddings is 1; it must be true or false"},
      {Config(", \"model_type\": \"qwen2\""), "num_key_value_heads is missing"},
      {Config(qwen2 + ", \"use_sliding_window\": true"),
       "use_sliding_window is true"},
      {Config(qwen2 + ", \"attention_bias\": false"),
       "attention_bias is false; this key"},
      {Config(qwen2 + ", \"layer_types\": [\"sliding_attention\"]"),
       "layer_types is"},
      {Config(", \"model_type\": \"mistral\", \"num_key_value_heads\": 2, "
              "\"sliding_window\": 4096"),
       "sliding_window is 4096"},
      {"{\"model_type\": \"gpt2\", \"scale_attn_by_inverse_layer_idx\": true}",
       "scale_attn_by_inverse_layer_idx is true"},
  };
  for (const auto& c : cases) {
    const auto spec = ParseHuggingFaceConfig(c.config);
    ASSERT_FALSE(spec.ok()) << c.config;
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(spec.status().message(), c.message))
        << spec.status();
  }
  EXPECT_FALSE(ReadHuggingFaceConfig(testing::TempDir() + "/nowhere").ok());
}

class HuggingFaceWeightsTest : public testing::Test {
 protected:
  HuggingFaceWeightsTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  TestWorld World(const std::string& model, int shards) {
    TrainConfig config;
    *config.mutable_model() = *ReadHuggingFaceConfig(kFixtures + model);
    return TestWorld(shards, 1, TestUse::kTrain, std::move(config));
  }
  // Writes a folder of files, each with some of the tensors.
  void Write(const std::vector<std::vector<SafetensorsWriter::Tensor>>& files) {
    std::string index;
    for (size_t f = 0; f < files.size(); ++f) {
      const std::string name =
          files.size() == 1 ? "model.safetensors"
                            : absl::StrCat("model-0000", f + 1, "-of-0000",
                                           files.size(), ".safetensors");
      auto writer =
          SafetensorsWriter::Create(folder_ + "/" + name, files[f], {});
      ASSERT_TRUE(writer.ok());
      for (const SafetensorsEntry& entry : (*writer)->entries()) {
        ASSERT_TRUE(
            (*writer)->Append(std::string(entry.end - entry.begin, 0)).ok());
        absl::StrAppend(&index, index.empty() ? "" : ",", "\"", entry.name,
                        "\":\"", name, "\"");
      }
      ASSERT_TRUE((*writer)->Close().ok());
    }
    if (files.size() > 1) WriteIndex("{" + index + "}");
  }
  void WriteIndex(const std::string& weight_map) {
    std::ofstream(folder_ + "/model.safetensors.index.json")
        << "{\"metadata\":{\"total_size\":1},\"weight_map\":" << weight_map
        << "}";
  }
  // What a folder of the model would hold.
  std::vector<SafetensorsWriter::Tensor> Tensors(const Model& model) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const Parameter* parameter : model.parameters())
      tensors.push_back({parameter->name, DType::kBF16, parameter->shape});
    return tensors;
  }
  absl::Status Match(const Model& model) {
    const auto folder = HuggingFaceFolder::Open(folder_);
    if (!folder.ok()) return folder.status();
    return MatchParameters(**folder, model).status();
  }

  const std::string folder_;
};

TEST_F(HuggingFaceWeightsTest, FixturesAtAnyWorldSize) {
  for (const std::string name : kModels) {
    const auto file = SafetensorsFile::Open(
        absl::StrCat(kFixtures, name, "/model.safetensors"));
    ASSERT_TRUE(file.ok()) << file.status();
    for (int shards : {1, 3}) {
      TestWorld world = World(name, shards);
      int64_t elements = 0;
      for (int rank = 0; rank < shards; ++rank) {
        ASSERT_TRUE(LoadHuggingFaceWeights(kFixtures + name, *world.plan, rank,
                                           world.executors[rank])
                        .ok());
        ShardWriter writer = world.Shards(rank);
        for (const HeldRange& held : writer.Held()) {
          std::string stored = held.parameter->name;
          if (name == "gpt2_tied")
            stored = absl::StrReplaceAll(stored, {{"transformer.", ""}});
          const SafetensorsEntry* entry = (*file)->Find(stored);
          ASSERT_NE(entry, nullptr) << stored;
          std::vector<float> expected(held.elements), values(held.elements);
          ReadAsFloat(*entry->dtype, (*file)->Data(*entry), held.begin,
                      absl::MakeSpan(expected));
          ASSERT_TRUE(
              writer.Read(held, 0, absl::MakeSpan(values), ShardKind::kMaster)
                  .ok());
          EXPECT_EQ(values, expected) << stored;
          elements += held.elements;
        }
      }
      EXPECT_EQ(elements, world.plan->model->numel());
    }
  }
}

TEST_F(HuggingFaceWeightsTest, SeveralFiles) {
  TestWorld world = World("llama_gqa_untied", 1);
  const Model& model = *world.plan->model;
  auto tensors = Tensors(model);
  const std::vector<SafetensorsWriter::Tensor> first(tensors.begin(),
                                                     tensors.begin() + 7);
  const std::vector<SafetensorsWriter::Tensor> second(tensors.begin() + 7,
                                                      tensors.end());
  Write({first, second});
  EXPECT_TRUE(Match(model).ok()) << Match(model);
  EXPECT_TRUE(
      LoadHuggingFaceWeights(folder_, *world.plan, 0, world.executors[0]).ok());

  const std::string index =
      *ReadWholeFile(folder_ + "/model.safetensors.index.json");
  const struct {
    std::string weight_map;
    std::string message;
  } cases[] = {
      {"3", "no object \"weight_map\""},
      {"{\"a\":3}", "weight_map \"a\" is no file name"},
      {"{\"a\":\"../x.safetensors\"}", "it must be in this folder"},
      {"{\"a\":\"none.safetensors\"}", "none.safetensors"},
      {"{\"a\":\"model-00001-of-00002.safetensors\"}",
       "tensor \"a\" is not in model-00001"},
  };
  for (const auto& c : cases) {
    WriteIndex(c.weight_map);
    EXPECT_TRUE(absl::StrContains(Match(model).message(), c.message))
        << Match(model);
  }
}

// A folder of another model, which has the first layer in common.
TEST_F(HuggingFaceWeightsTest, SomeParametersOfAnotherModel) {
  TrainConfig config;
  *config.mutable_model() =
      *ReadHuggingFaceConfig(absl::StrCat(kFixtures, "llama_gqa_untied"));
  config.mutable_model()->mutable_llama()->set_vocab_size(57);
  TestWorld world(2, 1, TestUse::kTrain, config);
  const std::string folder = absl::StrCat(kFixtures, "llama_gqa_untied");
  const auto load = [&](const std::string& pattern) {
    absl::Status status;
    for (int rank = 0; rank < 2 && status.ok(); ++rank)
      status = LoadHuggingFaceWeights(folder, *world.plan, rank,
                                      world.executors[rank], {pattern});
    return status;
  };
  for (HostExecutor& executor : world.executors) {
    for (const UnitBuffers& unit : world.plan->units)
      std::fill(executor.buffers[unit.master].begin(),
                executor.buffers[unit.master].end(), '\0');
  }
  EXPECT_TRUE(load("model[.]layers[.]0[.].*").ok());
  const auto file = SafetensorsFile::Open(folder + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  for (int rank = 0; rank < 2; ++rank) {
    ShardWriter shards = world.Shards(rank);
    for (const HeldRange& held : shards.Held()) {
      const std::string& name = held.parameter->name;
      std::vector<float> expected(held.elements), values(held.elements);
      if (absl::StartsWith(name, "model.layers.0.")) {
        const SafetensorsEntry* entry = (*file)->Find(name);
        ASSERT_NE(entry, nullptr) << name;
        ReadAsFloat(*entry->dtype, (*file)->Data(*entry), held.begin,
                    absl::MakeSpan(expected));
      }
      ASSERT_TRUE(
          shards.Read(held, 0, absl::MakeSpan(values), ShardKind::kMaster)
              .ok());
      EXPECT_EQ(values, expected) << name;
    }
  }
  EXPECT_TRUE(absl::StrContains(load("(").message(), "no regular expression"));
  EXPECT_TRUE(
      absl::StrContains(load("none").message(), "which matches no parameter"));
  EXPECT_TRUE(absl::StrContains(load(".*embed_tokens.*").message(),
                                "the model's parameter has [57, "));
}

TEST_F(HuggingFaceWeightsTest, OtherNamesOfTheSame) {
  TestWorld world = World("llama_tied", 1);
  const Model& model = *world.plan->model;
  auto tensors = Tensors(model);
  // Without "model.", with a copy of the tied head and rotary tables.
  for (SafetensorsWriter::Tensor& tensor : tensors)
    tensor.name = absl::StrReplaceAll(tensor.name, {{"model.", ""}});
  tensors.push_back({"lm_head.weight", DType::kBF16, {131, 64}});
  tensors.push_back(
      {"layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {8}});
  Write({tensors});
  EXPECT_TRUE(Match(model).ok()) << Match(model);
  // Only the head's name.
  tensors.erase(tensors.begin());
  Write({tensors});
  EXPECT_TRUE(Match(model).ok()) << Match(model);
}

TEST_F(HuggingFaceWeightsTest, MismatchesAreNamed) {
  TestWorld world = World("llama_gqa_untied", 1);
  const Model& model = *world.plan->model;
  EXPECT_TRUE(absl::StrContains(Match(model).message(), "has neither"));
  const auto refused = [&](const std::string& message, auto change) {
    auto tensors = Tensors(model);
    change(tensors);
    Write({tensors});
    EXPECT_TRUE(absl::StrContains(Match(model).message(), message))
        << Match(model);
  };
  refused("there is no tensor for the parameter model.embed_tokens.weight",
          [](auto& tensors) { tensors.erase(tensors.begin()); });
  refused("has shape [48, 131], but the model's parameter has [131, 48]",
          [](auto& tensors) {
            tensors[0].shape = {48, 131};
          });
  refused("has dtype I32",
          [](auto& tensors) { tensors[0].dtype = DType::kI32; });
  refused("no parameter for tensor \"model.layers.0.self_attn.q_proj.bias\"",
          [](auto& tensors) {
            tensors.push_back(
                {"model.layers.0.self_attn.q_proj.bias", DType::kF32, {48}});
          });
}

}  // namespace
}  // namespace shardgraph
