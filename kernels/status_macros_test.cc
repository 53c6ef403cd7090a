#include "kernels/status_macros.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::InvalidArgumentError("negative");
  return std::make_unique<int>(value);
}

template <typename A, typename B>
absl::Status Only(absl::Status status) {
  return status;
}

absl::StatusOr<int> Sum(int a, int b, int* evaluations) {
  SG_ASSIGN_OR_RETURN(std::unique_ptr<int> first, Make(a));
  std::unique_ptr<int> second;
  SG_ASSIGN_OR_RETURN(second, (++*evaluations, Make(b)));
  return *first + *second;
}

absl::Status Twice(absl::Status first, absl::Status second) {
  SG_RETURN_IF_ERROR(first);
  SG_RETURN_IF_ERROR(Only<int, int>(second));
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignsAndMovesOnce) {
  int evaluations = 0;
  ASSERT_TRUE(Sum(1, 2, &evaluations).ok());
  EXPECT_EQ(*Sum(1, 2, &evaluations), 3);
  EXPECT_EQ(evaluations, 2);
}

TEST(StatusMacrosTest, AssignReturnsTheError) {
  int evaluations = 0;
  EXPECT_EQ(Sum(-1, 2, &evaluations).status(),
            absl::InvalidArgumentError("negative"));
  EXPECT_EQ(evaluations, 0);
  EXPECT_EQ(Sum(1, -2, &evaluations).status(),
            absl::InvalidArgumentError("negative"));
  EXPECT_EQ(evaluations, 1);
}

TEST(StatusMacrosTest, ReturnsTheFirstError) {
  const absl::Status a = absl::NotFoundError("a");
  const absl::Status b = absl::AbortedError("b");
  EXPECT_TRUE(Twice(absl::OkStatus(), absl::OkStatus()).ok());
  EXPECT_EQ(Twice(a, b), a);
  EXPECT_EQ(Twice(absl::OkStatus(), b), b);
}

TEST(StatusMacrosDeathTest, CheckOkPrintsTheStatus) {
  SG_CHECK_OK(absl::OkStatus()) << "never printed";
  SG_CHECK_OK(Make(1));
  EXPECT_DEATH(SG_CHECK_OK(Make(-1)) << "at step 3",
               "Make\\(-1\\) is OK: INVALID_ARGUMENT: negative at step 3");
}

}  // namespace
}  // namespace shardgraph
