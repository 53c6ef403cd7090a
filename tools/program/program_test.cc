#include "tools/program/program.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/internal_error.h"
#include "tools/program/flags.h"

namespace shardgraph {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Parsed {
  std::string config;
  int64_t count = 3;
  double rate = 0.5;
  bool verbose = false;
  std::vector<std::string> inputs, rest;
  absl::Status status;
};

Parsed Parse(const std::vector<std::string>& args) {
  Parsed p;
  p.status = ParseFlags("usage", args,
                        {{"config", &p.config, "a file"},
                         {"count", &p.count, "how many"},
                         {"rate", &p.rate, "how fast"},
                         {"verbose", &p.verbose, "say more"},
                         {"input", &p.inputs, "files"}},
                        &p.rest);
  return p;
}

TEST(ParseFlags, SetsFlagsAndKeepsTheRest) {
  const Parsed p =
      Parse({"--config=a=b", "x.y=1", "--count", "-7", "--rate=2e-3",
             "--verbose", "--input=1", "--input", "2", "--", "--z"});
  ASSERT_TRUE(p.status.ok()) << p.status;
  EXPECT_EQ(p.config, "a=b");
  EXPECT_EQ(p.count, -7);
  EXPECT_EQ(p.rate, 2e-3);
  EXPECT_TRUE(p.verbose);
  EXPECT_THAT(p.inputs, ElementsAre("1", "2"));
  EXPECT_THAT(p.rest, ElementsAre("x.y=1", "--z"));
}

TEST(ParseFlags, SaysWhatIsWrong) {
  const auto message = [](const std::vector<std::string>& args) {
    return std::string(Parse(args).status.message());
  };
  EXPECT_THAT(message({"--confg=x"}),
              AllOf(HasSubstr("unknown flag --confg"),
                    HasSubstr("did you mean --config?")));
  EXPECT_THAT(message({"-v"}), HasSubstr("two dashes"));
  EXPECT_THAT(message({"--count=many"}),
              AllOf(HasSubstr("--count is \"many\""), HasSubstr("an integer")));
  EXPECT_THAT(message({"--rate=fast"}), HasSubstr("a number"));
  EXPECT_THAT(message({"--verbose=maybe"}), HasSubstr("true or false"));
  EXPECT_THAT(message({"--config"}), HasSubstr("--config has no value"));
  EXPECT_THAT(message({"--count", "--rate=1"}),
              HasSubstr("--count has no value"));
  EXPECT_TRUE(absl::IsCancelled(Parse({"--help"}).status));
}

TEST(ExitStatus, TellsWrongInputFromFailures) {
  EXPECT_EQ(ExitStatus(absl::OkStatus()), 0);
  EXPECT_EQ(ExitStatus(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitStatus(absl::NotFoundError("")), 2);
  EXPECT_EQ(ExitStatus(absl::FailedPreconditionError("")), 2);
  EXPECT_EQ(ExitStatus(absl::OutOfRangeError("")), 2);
  EXPECT_EQ(ExitStatus(absl::CancelledError("")), 0);
  EXPECT_EQ(ExitStatus(absl::UnavailableError("")), 1);
  EXPECT_EQ(ExitStatus(absl::DataLossError("")), 1);
  EXPECT_EQ(ExitStatus(absl::AbortedError("")), 1);
}

TEST(ExitStatus, InternalErrorsAreNotTheUsers) {
  for (const absl::Status& status :
       {absl::InvalidArgumentError("a"), absl::NotFoundError("a"),
        absl::FailedPreconditionError("a"), absl::OutOfRangeError("a")}) {
    EXPECT_EQ(AsInternal(status), absl::InternalError("a"));
    EXPECT_EQ(ExitStatus(AsInternal(status)), 1);
  }
  EXPECT_TRUE(AsInternal(absl::OkStatus()).ok());
  EXPECT_EQ(AsInternal(absl::DeadlineExceededError("b")),
            absl::DeadlineExceededError("b"));
}

TEST(UserPath, IsRelativeToWhereTheUserIs) {
  setenv("BUILD_WORKING_DIRECTORY", "/home/me", 1);
  EXPECT_EQ(UserPath("a/b"), "/home/me/a/b");
  EXPECT_EQ(UserPath("/a/b"), "/a/b");
  EXPECT_EQ(UserPath(""), "");
  unsetenv("BUILD_WORKING_DIRECTORY");
  EXPECT_EQ(UserPath("a/b"), "a/b");
}

}  // namespace
}  // namespace shardgraph
