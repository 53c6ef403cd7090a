// Metrics sinks: what they write is read again and compared.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <typeinfo>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/files/json.h"
#include "fsdp/train/metrics_jsonl.h"
#include "fsdp/train/progress.h"
#include "fsdp/train/tensorboard.h"
#include "gtest/gtest.h"
#include "kernels/testing/allocations.h"
#include "nlohmann/json.hpp"
#include "proto/tensorboard.pb.h"

namespace shardgraph {
namespace {

using Json = nlohmann::json;

std::string Folder(const std::string& name) {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

StepMetrics Step(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 1.0 / 3 + step;
  metrics.learning_rate = 3e-4;
  metrics.gradient_norm = 0.1;
  metrics.tokens = 4096;
  metrics.step_seconds = 0.5;
  metrics.tokens_per_second = 8192;
  metrics.mfu = 0;
  return metrics;
}

EvaluationMetrics Evaluation(int64_t step) {
  EvaluationMetrics metrics;
  metrics.step = step;
  metrics.loss = 2.5;
  metrics.tokens = 777;
  return metrics;
}

std::vector<Json> Lines(const std::string& path) {
  std::vector<Json> lines;
  for (const std::string& line : std::vector<std::string>(
           absl::StrSplit(ReadFile(path), '\n', absl::SkipEmpty()))) {
    lines.push_back(ParseJson(line));
  }
  return lines;
}

TEST(MetricsJsonl, KeysAndBits) {
  const std::string path = Folder("jsonl") + "/metrics.jsonl";
  auto sink = MetricsJsonl::Open(path, 0);
  ASSERT_TRUE(sink.ok()) << sink.status();
  ASSERT_TRUE((*sink)->Write(Step(1)).ok());
  ASSERT_TRUE((*sink)->Write(Evaluation(1)).ok());
  StepMetrics bad = Step(2);
  bad.loss = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE((*sink)->Write(bad).ok());

  const std::vector<Json> lines = Lines(path);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], Json({{"step", 1},
                            {"loss", 1.0 / 3 + 1},
                            {"learning_rate", 3e-4},
                            {"grad_norm", 0.1},
                            {"tokens", 4096},
                            {"tokens_per_second", 8192.0},
                            {"step_seconds", 0.5},
                            {"mfu", 0.0}}));
  EXPECT_EQ(lines[1],
            Json({{"step", 1}, {"eval_loss", 2.5}, {"eval_tokens", 777}}));
  EXPECT_TRUE(lines[2]["loss"].is_null());
}

TEST(MetricsJsonl, ResumeDropsLaterStepsAndTornLines) {
  const std::string path = Folder("resume") + "/metrics.jsonl";
  {
    auto sink = MetricsJsonl::Open(path, 0);
    ASSERT_TRUE(sink.ok());
    for (int step = 1; step <= 5; ++step) {
      ASSERT_TRUE((*sink)->Write(Step(step)).ok());
      if (step >= 3) {
        ASSERT_TRUE((*sink)->Write(Evaluation(step)).ok());
      }
    }
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 2, \"lo";
  auto sink = MetricsJsonl::Open(path, 3);
  ASSERT_TRUE(sink.ok()) << sink.status();
  ASSERT_TRUE((*sink)->Write(Step(4)).ok());
  std::vector<int64_t> steps;
  for (const Json& line : Lines(path)) steps.push_back(line["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 3, 4}));

  // A fresh run in the same place keeps nothing.
  ASSERT_TRUE(MetricsJsonl::Open(path, 0).ok());
  EXPECT_EQ(ReadFile(path), "");
}

TEST(MetricsJsonl, ErrorNamesTheFile) {
  const std::string path = Folder("none") + "/absent/metrics.jsonl";
  const auto sink = MetricsJsonl::Open(path, 0);
  ASSERT_FALSE(sink.ok());
  EXPECT_NE(std::string(sink.status().message()).find(path), std::string::npos);
}

// Check values of CRC-32C: RFC 3720, B.4, and the usual "123456789".
TEST(TensorBoard, MaskedCrcOfKnownData) {
  const auto masked = [](uint32_t crc) {
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  EXPECT_EQ(MaskedCrc32c("123456789"), masked(0xe3069283u));
  EXPECT_EQ(MaskedCrc32c(std::string(32, '\0')), masked(0x8a9136aau));
  EXPECT_EQ(MaskedCrc32c(std::string(32, '\xff')), masked(0x62a8ab43u));
  EXPECT_EQ(MaskedCrc32c(""), 0xa282ead8u);
}

uint64_t LittleEndian(const std::string& text, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i)
    value |= uint64_t{static_cast<unsigned char>(text.at(at + i))} << (8 * i);
  return value;
}

// Reads records as a reader of the format does; each must fill its frame.
std::vector<tensorboard::Event> ReadEvents(const std::string& path) {
  std::vector<tensorboard::Event> events;
  const std::string text = ReadFile(path);
  size_t at = 0;
  while (at < text.size()) {
    const uint64_t length = LittleEndian(text, at, 8);
    EXPECT_EQ(LittleEndian(text, at + 8, 4), MaskedCrc32c(text.substr(at, 8)));
    const std::string data = text.substr(at + 12, length);
    EXPECT_EQ(data.size(), length);
    EXPECT_EQ(LittleEndian(text, at + 12 + length, 4), MaskedCrc32c(data));
    events.emplace_back();
    EXPECT_TRUE(events.back().ParseFromString(data));
    at += 16 + length;
  }
  EXPECT_EQ(at, text.size());
  return events;
}

TEST(TensorBoard, RecordsReadAgain) {
  const std::string folder = Folder("events");
  auto writer = TensorBoardWriter::Open(folder, 0);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ((*writer)->path().find(folder + "/events.out.tfevents."), 0u);
  ASSERT_TRUE((*writer)->Write(Step(7)).ok());
  ASSERT_TRUE((*writer)->Write(Evaluation(7)).ok());

  const std::vector<tensorboard::Event> events = ReadEvents((*writer)->path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_GT(events[0].wall_time(), 1.6e9);
  EXPECT_EQ(events[1].step(), 7);
  ASSERT_EQ(events[1].summary().value_size(), 7);
  EXPECT_EQ(events[1].summary().value(0).tag(), "train/loss");
  EXPECT_EQ(events[1].summary().value(0).simple_value(),
            static_cast<float>(1.0 / 3 + 7));
  // A zero is there, too.
  EXPECT_EQ(events[1].summary().value(6).tag(), "speed/mfu");
  EXPECT_EQ(events[1].summary().value(6).value_case(),
            tensorboard::Summary::Value::kSimpleValue);
  EXPECT_EQ(events[2].summary().value(0).tag(), "eval/loss");

  auto resumed = TensorBoardWriter::Open(folder, 5);
  ASSERT_TRUE(resumed.ok());
  EXPECT_NE((*resumed)->path(), (*writer)->path());
  const std::vector<tensorboard::Event> again = ReadEvents((*resumed)->path());
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[1].step(), 6);
  EXPECT_EQ(again[1].session_log().status(), tensorboard::SessionLog::START);
}

// The bytes of a record that TensorFlow's writer makes of "brain.Event:2" with
// wall_time 0: field 3, 13 bytes.
TEST(TensorBoard, FileVersionIsFieldThree) {
  tensorboard::Event event;
  event.set_file_version("brain.Event:2");
  EXPECT_EQ(event.SerializeAsString(),
            "\x1a\x0d"
            "brain.Event:2");
  event.set_step(1);
  event.set_wall_time(1);
  EXPECT_EQ(event.SerializeAsString(),
            std::string("\x09\0\0\0\0\0\0\xf0\x3f\x10\x01\x1a\x0d", 13) +
                "brain.Event:2");
  tensorboard::Event summary;
  tensorboard::Summary::Value* value = summary.mutable_summary()->add_value();
  value->set_tag("a");
  value->set_simple_value(1);
  EXPECT_EQ(summary.SerializeAsString(), std::string("\x2a\x0a\x0a\x08\x0a\x01"
                                                     "a\x15\0\0\x80\x3f",
                                                     12));
}

std::string Shown(bool terminal, int64_t log_every) {
  char* data = nullptr;
  size_t size = 0;
  std::FILE* file = open_memstream(&data, &size);
  {
    ProgressLine line({.file = file,
                       .steps = 10,
                       .log_every = log_every,
                       .terminal = terminal});
    for (int step = 1; step <= 10; ++step) {
      EXPECT_TRUE(line.Write(Step(step)).ok());
      if (step == 4) {
        EXPECT_TRUE(line.Write(Evaluation(step)).ok());
      }
    }
  }
  std::fclose(file);
  const std::string text(data, size);
  std::free(data);
  return text;
}

TEST(Progress, OneLinePerLogEvery) {
  EXPECT_EQ(Shown(false, 4),
            "step  4/10  loss 4.3333  8.19 k tokens/s  3.0 s left\n"
            "step 4  held-out loss 2.5000 (777 tokens)\n"
            "step  8/10  loss 8.3333  8.19 k tokens/s  1.0 s left\n"
            "step 10/10  loss 10.3333  8.19 k tokens/s\n");
}

TEST(Progress, TerminalRewritesTheLine) {
  EXPECT_EQ(Shown(true, 5),
            "\rstep 4  held-out loss 2.5000 (777 tokens)\x1b[K\n"
            "\rstep  5/10  loss 5.3333  8.19 k tokens/s  2.5 s left\x1b[K"
            "\rstep 10/10  loss 10.3333  8.19 k tokens/s\x1b[K\n");
}

TEST(MetricsSinks, StepsAfterTheFirstAllocateNothing) {
  const std::string folder = Folder("allocations");
  auto jsonl = MetricsJsonl::Open(folder + "/metrics.jsonl", 0);
  auto events = TensorBoardWriter::Open(folder, 0);
  ASSERT_TRUE(jsonl.ok() && events.ok());
  std::FILE* const null = std::fopen("/dev/null", "w");
  auto progress = std::make_unique<ProgressLine>(
      ProgressOptions{.file = null, .steps = 1000, .terminal = true});
  for (MetricsSink* sink : {static_cast<MetricsSink*>(jsonl->get()),
                            static_cast<MetricsSink*>(events->get()),
                            static_cast<MetricsSink*>(progress.get())}) {
    int64_t before = 0;
    for (int step = 1; step <= 20; ++step) {
      if (step == 2) before = NumAllocations();
      StepMetrics metrics = Step(step);
      metrics.loss /= 10000;  // the texts become no longer
      ASSERT_TRUE(sink->Write(metrics).ok());
    }
    EXPECT_EQ(NumAllocations() - before, 0) << typeid(*sink).name();
  }
  progress.reset();  // it ends its line
  std::fclose(null);
}

TEST(Progress, Durations) {
  EXPECT_EQ(PrintDuration(0.04), "0.0 s");
  EXPECT_EQ(PrintDuration(59.4), "59 s");
  EXPECT_EQ(PrintDuration(59.6), "1 min 00 s");
  EXPECT_EQ(PrintDuration(3725), "1 h 02 min");
  EXPECT_EQ(PrintDuration(3 * 86400), "3 d 00 h");
  EXPECT_EQ(PrintRate(999.4), "999");
  EXPECT_EQ(PrintRate(12345), "12.3 k");
  EXPECT_EQ(PrintRate(4.567e6), "4.57 M");
}

}  // namespace
}  // namespace shardgraph
