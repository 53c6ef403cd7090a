// Wrong flags, configs, token files, texts and checkpoints, given to the
// programs as a user gives them: the exit status is 2, and the message names
// the field or file, what it is, and what to do.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/process.h"
#include "tests/faults/small_run.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr char kTrain[] = "tools/train/train";
constexpr char kPrepare[] = "tools/prepare/prepare";
constexpr char kGenerate[] = "tools/generate/generate";

// Lists are separated by '|'. "$D" stands for the folder, "$W" for the file of
// weights.
struct Case {
  const char* name;
  const char* arguments;
  const char* message;  // parts of it: where, what, remedy
  const char* environment = "";
};

std::vector<std::string> List(const std::string& text) {
  return absl::StrSplit(text, '|', absl::SkipEmpty());
}

std::string Header(int32_t magic, int32_t version, int32_t count) {
  std::string text(1024, '\0');
  const int32_t fields[3] = {magic, version, count};
  std::memcpy(text.data(), fields, sizeof(fields));
  return text;
}

class BadInputTest : public testing::Test {
 protected:
  BadInputTest() : folder_(TestFolder()) {
    Write("good.textproto", SmallConfig());
    WriteTokens(folder_ + "/tokens.bin", SomeTokens(2000));
  }

  void Write(const std::string& name, const std::string& text) {
    WriteText(folder_ + "/" + name, text);
  }

  std::string Fill(const std::string& text) const {
    return absl::StrReplaceAll(text, {{"$D", folder_}, {"$W", weights_}});
  }

  // Every case adds its arguments to `first`.
  void Expect(const std::string& program, const std::string& first,
              std::initializer_list<Case> cases) {
    for (const Case& c : cases) {
      SCOPED_TRACE(absl::StrCat(program, ": ", c.name));
      std::map<std::string, std::string> environment;
      for (const std::string& variable : List(c.environment))
        environment.insert(absl::StrSplit(variable, '='));
      Process process(program,
                      List(absl::StrCat(Fill(first), "|", Fill(c.arguments))),
                      environment);
      EXPECT_EQ(process.Wait(), 2) << process.output();
      for (const std::string& part : List(c.message))
        EXPECT_THAT(process.output(), HasSubstr(Fill(part)));
      // A message for users, not a trace.
      EXPECT_THAT(process.output(), Not(HasSubstr("INVALID_ARGUMENT")));
    }
  }

  // To a run that would do.
  void ExpectTrain(std::initializer_list<Case> cases) {
    Expect(
        kTrain,
        "--config=$D/good.textproto|data.path=$D/tokens.bin|--run_dir=$D/run",
        cases);
    EXPECT_FALSE(fs::exists(folder_ + "/run/checkpoints"));
  }

  const std::string folder_;
  std::string weights_;
};

TEST_F(BadInputTest, Flags) {
  Expect(kTrain, "",
         {{"no config", "", "--config is missing|--config=quickstart"},
          {"unknown preset", "--config=quikstart",
           "no config \"quikstart\"|did you mean \"quickstart\"?"},
          {"config not there", "--config=$D/none.textproto",
           "$D/none.textproto|give the path of a file or one of"},
          {"config is a folder", "--config=$D/",
           "$D/ is a directory|name a file in it"}});
  ExpectTrain({
      {"zero ranks", "--nproc=0", "--nproc is 0|1 to 1024 ranks"},
      {"minus one rank", "--nproc=-1", "--nproc is -1|1 to 1024 ranks"},
      {"ranks in words", "--nproc=two",
       "--nproc is \"two\"|it takes an integer"},
      {"unknown flag", "--npro=2", "unknown flag --npro|did you mean --nproc?"},
      {"one dash", "-nproc=2", "unknown flag -nproc=2|two dashes"},
      {"flag without a value", "--resume",
       "--resume has no value|--resume=VALUE"},
      {"unknown device", "--device=tpu",
       "run.device is \"tpu\"|auto, cpu or cuda"},
      {"no override", "steps",
       "\"steps\" is not of the form field.path=value|run.steps=100"},
      {"checkpoint to resume is not there", "--resume=$D/none",
       "--resume is \"$D/none\"|no checkpoint|use auto, never or"},
      {"run directory below a file", "--run_dir=$D/good.textproto/run",
       "cannot write to the run directory $D/good.textproto/run|choose another "
       "with --run_dir"},
      {"rank outside the world", "", "RANK is '5'|from 0 to 1",
       "RANK=5|WORLD_SIZE=2|LOCAL_RANK=0|MASTER_ADDR=127.0.0.1|MASTER_PORT="
       "29500"},
      {"nowhere to meet", "",
       "MASTER_ADDR is missing|set MASTER_ADDR and MASTER_PORT",
       "RANK=0|WORLD_SIZE=2|LOCAL_RANK=0"},
  });
}

TEST_F(BadInputTest, Fields) {
  ExpectTrain({
      {"unknown field", "optimizer.learning_rat=1",
       "unknown field \"optimizer.learning_rat\"|did you mean "
       "\"learning_rate\"?"},
      {"unknown group", "optimiser.learning_rate=1",
       "the config has no \"optimiser\"|did you mean \"optimizer\"?"},
      {"a group", "optimizer=adam",
       "optimizer is a group of fields|optimizer.kind="},
      {"below a value", "run.steps.more=1", "run.steps.more: steps is a value"},
      {"wrong type", "run.steps=ten",
       "run.steps cannot be \"ten\"|it takes an integer"},
      {"wrong truth", "run.capture=maybe",
       "run.capture cannot be \"maybe\"|true or false"},
      {"not a number", "optimizer.learning_rate=nan",
       "optimizer.learning_rate cannot be \"nan\"|it takes a number"},
      {"wrong enum", "shard.strategy=FULL",
       "shard.strategy cannot be \"FULL\"|FULL_SHARD, SHARD_GRAD_OP"},
      {"negative steps", "run.steps=-1",
       "run.steps is -1|it must be 0 or more"},
      {"negative learning rate", "optimizer.learning_rate=-1e-3",
       "optimizer.learning_rate is -0.001|for example 3e-4"},
      {"momentum of no use", "optimizer.momentum=0.9",
       "optimizer.momentum is 0.9|left out but with optimizer.kind=SGD"},
      {"unknown optimizer", "optimizer.kind=ADAMAX",
       "optimizer.kind cannot be \"ADAMAX\"|ADAMW, SGD, ADAM, LION"},
      {"moments in FP16", "precision.moments=FP16",
       "precision.moments is FP16|use FP32 or BF16"},
      {"all smoothing", "loss.label_smoothing=1",
       "loss.label_smoothing is 1|[0, 1)"},
      {"beta of one", "optimizer.beta2=1", "optimizer.beta2 is 1|[0, 1)"},
      {"empty micro-batch", "data.micro_batch_size=-1",
       "data.micro_batch_size is -1|1 or more"},
      {"empty batch", "data.batch_size=-6", "data.batch_size is -6|1 or more"},
      {"sequence longer than positions", "data.sequence_length=33",
       "data.sequence_length is 33|32 positions|set data.sequence_length to at "
       "most 32"},
      {"units in flight", "shard.prefetch=2|shard.max_units_in_flight=1",
       "shard.max_units_in_flight is 1|at least shard.prefetch + 1 = 3"},
      {"groups that do not divide the world",
       "shard.strategy=HYBRID|shard.shard_group_size=2",
       "shard.shard_group_size is 2|must divide the world of 1 ranks"},
      {"groups without HYBRID", "shard.shard_group_size=1",
       "shard.shard_group_size is 1|set shard.strategy=HYBRID"},
      {"resharding what is kept whole",
       "shard.strategy=ZERO1|shard.reshard_after_forward=true",
       "shard.reshard_after_forward is true|shard.strategy is ZERO1"},
      {"resharding what is kept whole to fewer ranks",
       "shard.strategy=SHARD_GRAD_OP|shard.reshard_group_size=1",
       "shard.reshard_group_size is 1|keeps parameters whole"},
      {"resharding to groups that do not divide the ranks",
       "shard.reshard_group_size=2",
       "shard.reshard_group_size is 2|must divide the 1 ranks"},
      {"recomputing nothing in particular", "shard.recompute=SELECTIVE",
       "shard.recompute is SELECTIVE|shard.recompute_ops is empty"},
      {"recomputing what there is not",
       "shard.recompute=SELECTIVE|shard.recompute_ops=norms",
       "shard.recompute_ops names \"norms\"|did you mean \"norm\"?"},
      {"ops of no use", "shard.recompute_ops=norm",
       "shard.recompute_ops is \"norm\"|set shard.recompute=SELECTIVE"},
      {"a budget of no use", "shard.memory_budget_bytes=5",
       "shard.memory_budget_bytes is 5|set shard.recompute=AUTO"},
      {"a budget below nothing",
       "shard.recompute=AUTO|shard.memory_budget_bytes=-5",
       "shard.memory_budget_bytes is -5|or more"},
      {"no budget", "shard.recompute=AUTO",
       "shard.memory_budget_bytes is 0|set shard.memory_budget_bytes"},
      {"a budget that is too small",
       "shard.recompute=AUTO|shard.memory_budget_bytes=5",
       "nothing fits shard.memory_budget_bytes = 5 bytes|at least|raise the "
       "budget"},
      {"FP16 that stops", "precision.compute=FP16|run.non_finite=STOP",
       "run.non_finite is STOP|it must be SKIP"},
      {"a loss scale in BF16", "precision.loss_scale.initial=8",
       "precision.loss_scale is given|set precision.compute=FP16"},
      {"reduction in FP16", "precision.reduce=FP16",
       "precision.reduce is FP16|use FP32 or BF16"},
      {"unknown target", "run.target=h10", "no target \"h10\"|did you mean"},
      {"timeout", "run.timeout_seconds=-3",
       "run.timeout_seconds is -3|more than 0"},
      {"kept steps", "checkpoint.keep_every=-1",
       "checkpoint.keep_every is -1|0 (none) or more"},
      {"stall", "checkpoint.stall_seconds=-1",
       "checkpoint.stall_seconds is -1|more than 0"},
      {"write rate", "checkpoint.write_mb_per_second=-2",
       "checkpoint.write_mb_per_second is -2|0 (no limit) or more"},
      {"parameters from nowhere", "checkpoint.initialize_parameters=.*",
       "checkpoint.initialize_parameters is \".*\"|"
       "checkpoint.initialize_from is empty"},
      {"parameters of nothing",
       "checkpoint.initialize_parameters=.*|checkpoint.initialize_from=$D",
       "$D has neither model.safetensors"},
      {"no units match", "shard.wrap_policy=BY_NAME|shard.wrap_pattern=(",
       "shard.wrap_pattern|("},
  });
}

TEST_F(BadInputTest, Models) {
  ExpectTrain({
      {"heads that do not divide", "model.gpt2.n_head=5",
       "model.gpt2.n_head is 5|must divide n_embd, which is 36|4, 6"},
      {"dropout of one", "model.gpt2.resid_pdrop=1",
       "model.gpt2.resid_pdrop is 1|below 1"},
      {"unknown activation", "model.gpt2.activation_function=gleu",
       "model.gpt2.activation_function is \"gleu\"|\"gelu\""},
      {"no layers", "model.gpt2.n_layer=-1",
       "model.gpt2.n_layer is -1|between 1 and"},
  });
  const std::string llama =
      "model { llama { vocab_size: 97 hidden_size: 36 intermediate_size: 64 "
      "num_hidden_layers: 1 num_attention_heads: 6 num_key_value_heads: 4 } }";
  Write("llama.textproto", llama);
  Write("model.textproto", "run { steps: 1 }\n");
  Expect(
      kTrain, "",
      {{"key and value heads that do not divide", "--config=$D/llama.textproto",
        "num_key_value_heads is 4|must divide num_attention_heads|3, 6"},
       {"no model", "--config=$D/model.textproto", "model|gpt2|llama"}});
}

TEST_F(BadInputTest, ConfigFiles) {
  Write("syntax.textproto", SmallConfig() + "schedule { kind: COSINE\n");
  Write("field.textproto", "run {\n  stpes: 5\n}\n");
  Write("enum.textproto", "shard {\n  strategy: FULL\n}\n");
  Write("type.textproto", "run {\n  steps: \"ten\"\n}\n");
  Write("twice.textproto", "run {\n  steps: 1\n  steps: 2\n}\n");
  Write("binary.textproto", std::string("\x00\xff\x01\x02", 4));
  Expect(
      kTrain, "",
      {{"syntax error", "--config=$D/syntax.textproto",
        "$D/syntax.textproto:13:1: "},
       {"unknown field", "--config=$D/field.textproto",
        "$D/field.textproto:2:|unknown field \"stpes\"|did you mean "
        "\"steps\"?"},
       {"wrong enum", "--config=$D/enum.textproto",
        "$D/enum.textproto:3:|\"FULL\"|\"strategy\"|FULL_SHARD, SHARD_GRAD_OP"},
       {"wrong type", "--config=$D/type.textproto",
        "$D/type.textproto:2:|ten|xpected integer"},
       {"field twice", "--config=$D/twice.textproto",
        "$D/twice.textproto:3:|\"steps\"|multiple times"},
       {"not text", "--config=$D/binary.textproto", "$D/binary.textproto:1:"}});
}

TEST_F(BadInputTest, TokenFiles) {
  Write("empty.bin", "");
  Write("odd.txt", "text");
  Write("odd.txt", std::string("This is text, not tokens.\n") + "x");
  Write("even.txt", std::string(400, 'a'));
  WriteTokens(folder_ + "/one.bin", {3});
  WriteTokens(folder_ + "/short.bin", SomeTokens(9));
  WriteTokens(folder_ + "/high.bin", std::vector<uint16_t>(64, 97));
  Write("cut.bin", Header(20240520, 1, 1000) + std::string(1998, '\0'));
  Write("version.bin", Header(20240520, 9, 1) + std::string(2, '\0'));
  fs::create_directories(folder_ + "/folder");
  // Fine where it is looked at before the start; found by the rank that has it.
  std::vector<uint16_t> late = SomeTokens(16 * 40 + 1);
  std::fill(late.begin() + 1, late.end(), 200);
  WriteTokens(folder_ + "/late.bin", SomeTokens(16 * 40 + 1));
  ExpectTrain({
      {"no path", "data.path=", "data.path is empty|//tools:prepare"},
      {"missing", "data.path=$D/none.bin",
       "data.path \"$D/none.bin\" names no file|//tools:prepare"},
      {"glob without a match", "data.path=$D/none*.bin",
       "$D/none*.bin|//tools:prepare"},
      {"folder without train.bin", "data.path=$D/folder",
       "$D/folder/train.bin|No such file|//tools:prepare"},
      {"empty", "data.path=$D/empty.bin",
       "token file $D/empty.bin: empty|//tools:prepare"},
      {"text of odd size", "data.path=$D/odd.txt",
       "$D/odd.txt: 27 bytes|if this is text|//tools:prepare"},
      {"text of even size", "data.path=$D/even.txt",
       "$D/even.txt: token 24929|vocabulary of 97|if this is "
       "text|//tools:prepare"},
      {"truncated", "data.path=$D/cut.bin",
       "$D/cut.bin: truncated|1000 tokens, 3024 bytes, but it has 3022|make "
       "it again"},
      {"unknown version", "data.path=$D/version.bin",
       "$D/version.bin: version 9|only version 1"},
      {"one token", "data.path=$D/one.bin",
       "$D/one.bin|hold 1 tokens|at least 2"},
      {"shorter than a sequence", "data.path=$D/short.bin",
       "data.sequence_length is 16|only 9 tokens|shorter sequences"},
      {"token out of range", "data.path=$D/high.bin",
       "$D/high.bin: token 97 at position|vocabulary of 97|vocab_size to at "
       "least 98"},
      {"held-out token out of range, two ranks",
       "data.validation_path=$D/"
       "high.bin|--nproc=2|run.steps=1|checkpoint.every=0",
       "$D/high.bin: token 97 at position|vocabulary of 97"},
      {"held-out file missing", "data.validation_path=$D/none.bin",
       "$D/none.bin|names no file"},
      {"weights missing", "checkpoint.initialize_from=$D/none", "$D/none"},
  });
}

TEST_F(BadInputTest, Prepare) {
  Write("empty.txt", "");
  Write("short.txt", "short");
  Write("good.txt", std::string(1000, 'x'));
  Write("tokens.bin", Header(20240520, 1, 4) + std::string(8, '\0'));
  Write("bad.json", "{}");
  Expect(
      kPrepare, "",
      {{"nothing", "", "--input is missing|--input=FILE_OR_GLOB"},
       {"no output", "--input=$D/good.txt", "--output is missing|--output=DIR"},
       {"unknown flag", "--inptu=$D/good.txt|--output=$D/out",
        "unknown flag --inptu|did you mean --input?"},
       {"flag without a value", "--input=$D/good.txt|--output",
        "--output has no value"},
       {"empty text", "--input=$D/empty.txt|--output=$D/out",
        "$D/empty.txt is empty|give text of"},
       {"short text", "--input=$D/short.txt|--output=$D/out",
        "$D/short.txt has only 5 bytes|give text of"},
       {"missing", "--input=$D/none.txt|--output=$D/out",
        "$D/none.txt: No such file"},
       {"glob without a match", "--input=$D/*.md|--output=$D/out",
        "$D/*.md: no file matches it"},
       {"folder", "--input=$D|--output=$D/out",
        "$D: it is a folder|'$D/*.txt'"},
       {"tokens already", "--input=$D/tokens.bin|--output=$D/out",
        "$D/tokens.bin: it is a token file already|data.path"},
       {"output below a file", "--input=$D/good.txt|--output=$D/good.txt/out",
        "cannot make the output folder $D/good.txt/out|name another with "
        "--output"},
       {"unknown tokenizer",
        "--input=$D/good.txt|--output=$D/out|--tokenizer=$D/none",
        "no tokenizer \"$D/none\"|use \"bytes\", the path"},
       {"tokenizer without a type",
        "--input=$D/good.txt|--output=$D/out|--tokenizer=$D/bad.json",
        "$D/bad.json|model is null"}});
  for (const char* name : {"train.bin", "train.bin.tmp", "val.bin"})
    EXPECT_FALSE(fs::exists(folder_ + "/out/" + name)) << name;
}

TEST_F(BadInputTest, GenerateFlags) {
  Expect(
      kGenerate, "",
      {{"no checkpoint", "--prompt=a",
        "--checkpoint is missing|the directory of a run"},
       {"no prompt", "--checkpoint=$D",
        "--prompt is empty|at least one character"},
       {"prompt without a flag", "--checkpoint=$D|Once",
        "unexpected argument \"Once\"|--prompt"},
       {"unknown flag", "--promt=a",
        "unknown flag --promt|did you mean --prompt?"},
       {"checkpoint not there", "--checkpoint=$D/none|--prompt=a",
        "no checkpoint in $D/none|give a checkpoint"},
       {"folder without a checkpoint", "--checkpoint=$D|--prompt=a",
        "no checkpoint in $D|give a checkpoint"},
       {"no tokens", "--checkpoint=$D|--prompt=a|--max_tokens=0",
        "--max_tokens is 0|1 or more"},
       {"negative temperature", "--checkpoint=$D|--prompt=a|--temperature=-1",
        "--temperature is -1|0 or more"},
       {"temperature in words", "--checkpoint=$D|--prompt=a|--temperature=hot",
        "--temperature is \"hot\"|it takes a number"},
       {"zero ranks", "--checkpoint=$D|--prompt=a|--nproc=0",
        "--nproc is 0|1 to 1024"}});
}

// What only a finished run can be asked for.
TEST_F(BadInputTest, Checkpoints) {
  Process train(kTrain, {absl::StrCat("--config=", folder_, "/good.textproto"),
                         absl::StrCat("--run_dir=", folder_, "/done"),
                         absl::StrCat("data.path=", folder_, "/tokens.bin"),
                         "model.gpt2.vocab_size=256", "run.steps=1"});
  ASSERT_EQ(train.Wait(), 0) << train.output();
  const std::string checkpoint = folder_ + "/done/checkpoints/step_0000001";
  ASSERT_TRUE(fs::exists(checkpoint));
  const std::string run = "--checkpoint=$D/done|--prompt=ab";
  Expect(
      kGenerate, run,
      {{"no tokenizer", "",
        "no tokenizer.json or tokenizer.model beside $D/done|copy the one"}});
  Write("done/tokenizer.json",
        "{\"version\": \"1.0\", \"model\": {\"type\": \"bytes\"}}");
  Expect(kGenerate, "",
         {{"prompt longer than the model",
           "--checkpoint=$D/done|--prompt=a prompt of thirty four characters",
           "--prompt has 34 tokens|32 positions|shorten the prompt"},
          {"device", "--checkpoint=$D/done|--prompt=ab|--device=tpu",
           "device is \"tpu\"|auto, cpu or cuda"}});

  const std::string again =
      "--config=$D/good.textproto|data.path=$D/tokens.bin|--run_dir=$D/"
      "done|model.gpt2.vocab_size=256";
  Expect(kTrain, again,
         {{"another model", "model.gpt2.n_embd=72",
           "$D/done/checkpoints|it is of another model"},
          {"another batch size", "data.batch_size=9",
           "data.batch_size is 9|was made with 6|set data.batch_size=6, or "
           "start anew with --resume=never"},
          {"another optimizer", "optimizer.kind=SGD",
           "optimizer.kind is SGD|ADAMW|--resume=never"}});

  // That it can be asked at all; then with its file of weights damaged.
  Process ok(kGenerate, List(Fill(run + "|--max_tokens=2")));
  ASSERT_EQ(ok.Wait(), 0) << ok.output();
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors")
      weights_ = entry.path().string();
  }
  ASSERT_NE(weights_, "");
  const auto size = fs::file_size(weights_);
  fs::resize_file(weights_, size - 1);
  Expect(kGenerate, run,
         {{"truncated weights", "", "$W|bytes, but the manifest says"}});
  Expect(kTrain, again,
         {{"truncated weights", "--resume=$D/done/checkpoints/step_0000001",
           "--resume is \"$D/done/checkpoints/step_0000001\"|$W|use auto, "
           "never or"}});
  WriteText(weights_, std::string(size, 'x'));
  Expect(kGenerate, run, {{"damaged weights", "", "$W"}});
}

}  // namespace
}  // namespace shardgraph
