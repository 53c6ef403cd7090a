// Models of Hugging Face folders against transformers: what our FP32 computes
// from a folder that `convert` has taken to a checkpoint and back.
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/huggingface.h"
#include "graph/model/module.h"
#include "graph/model/testing/plain_parameters.h"
#include "graph/testing/interpreter.h"
#include "gtest/gtest.h"
#include "kernels/cpu/kernels.h"
#include "kernels/step_state.h"
#include "tests/harness/fixture_models.h"
#include "tools/convert/convert.h"
#include "tools/interop/huggingface_config.h"

namespace shardgraph {
namespace {

using Elements = std::vector<double>;

class HuggingFaceLogitsTest : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFaceLogitsTest, WithinOneInTenThousand) {
  const std::string fixture =
      absl::StrCat("tests/fixtures/interop/", GetParam());
  const std::string run = absl::StrCat(testing::TempDir(), "/", GetParam());
  const std::string folder = absl::StrCat(run, "_again");
  std::filesystem::remove_all(run);
  std::filesystem::remove_all(folder);
  const auto there = Convert({.from = fixture, .to = run});
  ASSERT_TRUE(there.ok()) << there.status();
  const auto back = Convert({.from = run, .to = folder});
  ASSERT_TRUE(back.ok()) << back.status();

  const auto spec = ReadHuggingFaceConfig(folder);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::unique_ptr<Model> model = *MakeModel(*spec);
  const auto opened = HuggingFaceFolder::Open(folder);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto matched = MatchParameters(**opened, *model);
  ASSERT_TRUE(matched.ok()) << matched.status();

  Graph graph;
  GraphBuilder builder(&graph);
  PlainParameters parameters(builder, *model, DType::kF32, true);
  Interpreter interpreter(graph, CpuKernels());
  for (const auto& [parameter, stored] : *matched) {
    std::vector<float> values(parameter->numel());
    ReadAsFloat(*stored.entry->dtype, stored.file->Data(*stored.entry), 0,
                absl::MakeSpan(values));
    interpreter.Write(parameters.Get(*parameter),
                      Elements(values.begin(), values.end()));
  }
  const std::map<std::string, Elements> expected = ReadFixtureTensors(
      absl::StrCat("interop/", GetParam(), "/logits.safetensors"));
  const Elements& tokens = expected.at("tokens");
  const Elements& logits = expected.at("logits");
  const int64_t length = tokens.size(), vocabulary = model->vocab_size();
  ASSERT_EQ(logits.size(), static_cast<size_t>(length * vocabulary));

  builder.SetPhase("prefill");
  const auto forward = model->Emit(builder, parameters,
                                   {.mode = ForwardMode::kGenerate,
                                    .length = length,
                                    .compute = DType::kF32,
                                    .cache_length = length});
  ASSERT_TRUE(forward.ok()) << forward.status();
  interpreter.Write(builder.StateField(offsetof(StepState, position),
                                       TensorType(DType::kI64, {})),
                    Elements{0});
  interpreter.Write(graph.inputs.at("tokens"), tokens);
  double worst = 0;
  for (int64_t row = 0; row < length; ++row) {
    interpreter.Write(graph.inputs.at("last_rows"),
                      Elements{static_cast<double>(row)});
    const absl::Status status = interpreter.Run("prefill");
    ASSERT_TRUE(status.ok()) << status;
    const Elements ours = interpreter.Read(forward->logits);
    for (int64_t i = 0; i < vocabulary; ++i) {
      worst = std::max(worst, std::abs(ours[i] - logits[row * vocabulary + i]));
    }
  }
  RecordProperty("largest_difference", absl::StrCat(worst));
  EXPECT_LE(worst, 1e-4);
  // The comparison means something.
  double largest = 0;
  for (const double x : logits) largest = std::max(largest, std::abs(x));
  EXPECT_GT(largest, 1);
}

INSTANTIATE_TEST_SUITE_P(Families, HuggingFaceLogitsTest,
                         testing::Values("gpt2", "llama2", "llama3", "llama31",
                                         "qwen2", "qwen3"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace shardgraph
