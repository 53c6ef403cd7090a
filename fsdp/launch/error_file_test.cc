#include "fsdp/launch/error_file.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

std::string Path(const std::string& name) {
  return testing::TempDir() + "/" + name;
}

TEST(ErrorFileTest, IsWhatTorchrunReads) {
  const std::string path = Path("error.json");
  const std::string message = "data.path: \"x\"\nno such file \xff";
  ASSERT_TRUE(
      WriteErrorFile(path, message, absl::FromUnixSeconds(1700000000)).ok());
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file);
  EXPECT_EQ(json["message"]["message"],
            "data.path: \"x\"\nno such file \xEF\xBF\xBD");
  EXPECT_EQ(json["message"]["extraInfo"]["timestamp"], "1700000000");
  EXPECT_TRUE(json["message"]["extraInfo"]["py_callstack"].is_string());
  const RankError error = *ReadErrorFile(path);
  EXPECT_EQ(error.message, json["message"]["message"]);
  EXPECT_EQ(error.unix_seconds, 1700000000);
}

TEST(ErrorFileTest, NoPathNoFile) {
  EXPECT_TRUE(WriteErrorFile("", "message", absl::Now()).ok());
}

TEST(ErrorFileTest, UnwritableIsAnError) {
  EXPECT_FALSE(
      WriteErrorFile(Path("none/such/error.json"), "message", absl::Now())
          .ok());
}

TEST(ErrorFileTest, OtherFiles) {
  EXPECT_EQ(ReadErrorFile(Path("missing.json")).status().code(),
            absl::StatusCode::kNotFound);
  for (const std::string text :
       {"", "{", "[]", "{\"message\":\"text\"}",
        "{\"message\":{\"message\":\"m\",\"extraInfo\":{\"timestamp\":7}}}"}) {
    const std::string path = Path("other.json");
    std::ofstream(path) << text;
    EXPECT_EQ(ReadErrorFile(path).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace shardgraph
