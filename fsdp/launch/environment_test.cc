#include "fsdp/launch/environment.h"

#include <stdlib.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const EnvironmentMap kTorchrun = {{"RANK", "5"},
                                  {"LOCAL_RANK", "1"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_WORLD_SIZE", "4"},
                                  {"GROUP_RANK", "1"},
                                  {"MASTER_ADDR", "node1"},
                                  {"MASTER_PORT", "29500"},
                                  {"TORCHELASTIC_RUN_ID", "run7"},
                                  {"TORCHELASTIC_RESTART_COUNT", "2"},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                  {"TORCHELASTIC_ERROR_FILE", "/e.json"}};

const EnvironmentMap kSlurm = {{"SLURM_PROCID", "3"},
                               {"SLURM_NTASKS", "4"},
                               {"SLURM_LOCALID", "1"},
                               {"SLURM_NODEID", "1"},
                               {"SLURM_JOB_ID", "42"},
                               {"SLURM_STEP_ID", "0"},
                               {"SLURM_JOB_NODELIST", "node[07-08]"}};

const EnvironmentMap kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                                 {"OMPI_COMM_WORLD_SIZE", "4"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                 {"PMIX_NAMESPACE", "prterun-77"},
                                 {"MASTER_ADDR", "node1"},
                                 {"MASTER_PORT", "30000"}};

EnvironmentMap With(EnvironmentMap map, const std::string& name,
                    const std::string& value) {
  map[name] = value;
  return map;
}
EnvironmentMap Without(EnvironmentMap map, const std::string& name) {
  map.erase(name);
  return map;
}

TEST(LaunchEnvironmentTest, NothingIsOneRank) {
  const LaunchEnvironment e = *ParseLaunchEnvironment({{"HOME", "/root"}});
  EXPECT_EQ(e.launcher, Launcher::kNone);
  EXPECT_EQ(e.rank, 0);
  EXPECT_EQ(e.world_size, 1);
  EXPECT_EQ(e.local_rank, 0);
  EXPECT_EQ(e.store_host, "");
  EXPECT_EQ(e.note, "");
}

TEST(LaunchEnvironmentTest, TorchrunWithAgentStore) {
  const LaunchEnvironment e = *ParseLaunchEnvironment(kTorchrun);
  EXPECT_EQ(e.launcher, Launcher::kTorchrun);
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.world_size, 8);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world_size, 4);
  EXPECT_EQ(e.store_host, "node1");
  EXPECT_EQ(e.store_port, 29500);
  EXPECT_FALSE(e.serves_store);
  EXPECT_EQ(e.store_token, "");
  EXPECT_EQ(e.store_prefix, "shardgraph/run7/2");
  EXPECT_EQ(e.error_file, "/e.json");
  // Rank 0 does not serve either: the agent holds the port.
  EXPECT_FALSE(
      ParseLaunchEnvironment(With(kTorchrun, "RANK", "0"))->serves_store);
}

TEST(LaunchEnvironmentTest, TorchrunWithoutAgentStore) {
  // Only exactly "True" means that there is one.
  for (const std::string value : {"False", "1", "true", ""}) {
    const EnvironmentMap map =
        With(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", value);
    EXPECT_FALSE(ParseLaunchEnvironment(map)->serves_store);
    const LaunchEnvironment zero =
        *ParseLaunchEnvironment(With(map, "RANK", "0"));
    EXPECT_TRUE(zero.serves_store) << value;
    EXPECT_EQ(zero.store_port, 29500);
    EXPECT_FALSE(zero.store_token.empty());
    EXPECT_EQ(zero.store_token, ParseLaunchEnvironment(map)->store_token);
    EXPECT_NE(
        zero.store_token,
        ParseLaunchEnvironment(With(map, "TORCHELASTIC_RESTART_COUNT", "3"))
            ->store_token);
  }
}

TEST(LaunchEnvironmentTest, MinimalVariablesByHand) {
  const LaunchEnvironment e =
      *ParseLaunchEnvironment({{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "1234"}});
  EXPECT_EQ(e.rank, 1);
  EXPECT_EQ(e.local_rank, -1);
  EXPECT_EQ(e.local_world_size, -1);
  EXPECT_EQ(e.store_prefix, "shardgraph/none/0");
}

TEST(LaunchEnvironmentTest, OneRankNeedsNoMaster) {
  const LaunchEnvironment e =
      *ParseLaunchEnvironment({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(e.world_size, 1);
  EXPECT_EQ(e.local_rank, 0);
  EXPECT_EQ(e.store_host, "");
}

TEST(LaunchEnvironmentTest, OwnLauncherComesFirst) {
  EnvironmentMap map = With(kTorchrun, kTokenVariable, "secret");
  map.insert(kSlurm.begin(), kSlurm.end());
  const LaunchEnvironment e = *ParseLaunchEnvironment(map);
  EXPECT_EQ(e.launcher, Launcher::kOwn);
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.store_token, "secret");
  EXPECT_FALSE(e.serves_store);
}

TEST(LaunchEnvironmentTest, TorchrunComesBeforeSlurmAndMpi) {
  EnvironmentMap map = kTorchrun;
  map.insert(kSlurm.begin(), kSlurm.end());
  map.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(ParseLaunchEnvironment(map)->launcher, Launcher::kTorchrun);
  map = kSlurm;
  map.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(ParseLaunchEnvironment(map)->launcher, Launcher::kSlurm);
}

TEST(LaunchEnvironmentTest, Slurm) {
  const LaunchEnvironment e = *ParseLaunchEnvironment(kSlurm);
  EXPECT_EQ(e.launcher, Launcher::kSlurm);
  EXPECT_EQ(e.rank, 3);
  EXPECT_EQ(e.world_size, 4);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world_size, -1);
  EXPECT_EQ(e.store_host, "node07");
  EXPECT_GE(e.store_port, 20000);
  EXPECT_LT(e.store_port, 32000);
  EXPECT_FALSE(e.serves_store);
  const LaunchEnvironment zero =
      *ParseLaunchEnvironment(With(kSlurm, "SLURM_PROCID", "0"));
  EXPECT_TRUE(zero.serves_store);
  EXPECT_EQ(zero.store_port, e.store_port);
  EXPECT_EQ(zero.store_token, e.store_token);
  // Another step of the job is another job.
  const LaunchEnvironment other =
      *ParseLaunchEnvironment(With(kSlurm, "SLURM_STEP_ID", "1"));
  EXPECT_NE(other.store_token, e.store_token);
  EXPECT_NE(other.store_prefix, e.store_prefix);
}

TEST(LaunchEnvironmentTest, SlurmStepsGoBeforeJobs) {
  // Two of the four tasks of the job, on its second node.
  EnvironmentMap map = With(kSlurm, "SLURM_STEP_NUM_TASKS", "2");
  map = With(map, "SLURM_STEP_NODELIST", "node08");
  map = With(map, "SLURM_PROCID", "1");
  const LaunchEnvironment e = *ParseLaunchEnvironment(map);
  EXPECT_EQ(e.world_size, 2);
  EXPECT_EQ(e.store_host, "node08");
  // What the user sets goes before both.
  map = With(With(map, "MASTER_ADDR", "10.1.1.1"), "MASTER_PORT", "999");
  EXPECT_EQ(ParseLaunchEnvironment(map)->store_host, "10.1.1.1");
  EXPECT_EQ(ParseLaunchEnvironment(map)->store_port, 999);
}

TEST(LaunchEnvironmentTest, StraySlurmIsOneRank) {
  const EnvironmentMap strays[] = {
      {{"SLURM_PROCID", "0"}},
      // The body of a batch script.
      Without(kSlurm, "SLURM_STEP_ID"),
      // A shell made by srun --pty.
      With(kSlurm, "SLURM_PTY_PORT", "33333"),
  };
  for (const EnvironmentMap& map : strays) {
    const LaunchEnvironment e = *ParseLaunchEnvironment(map);
    EXPECT_EQ(e.launcher, Launcher::kNone);
    EXPECT_EQ(e.world_size, 1);
    EXPECT_THAT(e.note, HasSubstr("SLURM_PROCID"));
  }
}

TEST(LaunchEnvironmentTest, OpenMpi) {
  const LaunchEnvironment e = *ParseLaunchEnvironment(kOpenMpi);
  EXPECT_EQ(e.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(e.rank, 2);
  EXPECT_EQ(e.world_size, 4);
  EXPECT_EQ(e.local_rank, 0);
  EXPECT_EQ(e.local_world_size, 2);
  EXPECT_EQ(e.store_host, "node1");
  EXPECT_EQ(e.store_port, 30000);
}

TEST(LaunchEnvironmentTest, OpenMpiOnOneHostNeedsNoMaster) {
  EnvironmentMap map = Without(kOpenMpi, "MASTER_ADDR");
  map = With(map, "OMPI_COMM_WORLD_LOCAL_SIZE", "4");
  const LaunchEnvironment e = *ParseLaunchEnvironment(map);
  EXPECT_EQ(e.store_host, "127.0.0.1");
  EXPECT_GE(e.store_port, 20000);
}

TEST(LaunchEnvironmentTest, TheUsersSecretIsTheToken) {
  const EnvironmentMap torchrun =
      With(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False");
  for (const EnvironmentMap& map : {torchrun, kSlurm, kOpenMpi}) {
    const LaunchEnvironment guessable = *ParseLaunchEnvironment(map);
    const LaunchEnvironment e =
        *ParseLaunchEnvironment(With(map, kSecretVariable, "secret"));
    EXPECT_EQ(e.launcher, guessable.launcher);
    EXPECT_EQ(e.store_token, "secret");
    EXPECT_NE(guessable.store_token, "");
  }
  // Rank 0 says so when there is none; the others do not repeat it.
  EnvironmentMap zero = With(torchrun, "RANK", "0");
  EXPECT_THAT(ParseLaunchEnvironment(zero)->note, HasSubstr(kSecretVariable));
  EXPECT_EQ(ParseLaunchEnvironment(torchrun)->note, "");
  EXPECT_EQ(ParseLaunchEnvironment(With(zero, kSecretVariable, "secret"))->note,
            "");
  // Nor where nobody else comes.
  EXPECT_EQ(
      ParseLaunchEnvironment(With(zero, "MASTER_ADDR", "127.0.0.1"))->note, "");
}

TEST(LaunchEnvironmentTest, WrongValuesAreNamed) {
  const struct {
    EnvironmentMap map;
    std::string expected;
  } cases[] = {
      {Without(kTorchrun, "WORLD_SIZE"), "WORLD_SIZE is missing"},
      {Without(kTorchrun, "RANK"), "RANK is missing"},
      {Without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR is missing"},
      {Without(kTorchrun, "MASTER_PORT"), "MASTER_PORT is missing"},
      {With(kTorchrun, "MASTER_PORT", "0"), "MASTER_PORT is '0'"},
      {With(kTorchrun, "MASTER_PORT", "65536"), "from 1 to 65535"},
      {With(kTorchrun, "RANK", "8"),
       "RANK is '8'; allowed are whole numbers "
       "from 0 to 7"},
      {With(kTorchrun, "RANK", "-1"), "RANK is '-1'"},
      {With(kTorchrun, "RANK", "one"), "RANK is 'one'"},
      {With(kTorchrun, "WORLD_SIZE", "0"), "WORLD_SIZE is '0'"},
      {With(kTorchrun, "LOCAL_RANK", "4"), "LOCAL_RANK is '4'"},
      {With(kTorchrun, "LOCAL_WORLD_SIZE", "9"), "LOCAL_WORLD_SIZE is '9'"},
      {Without(kSlurm, "SLURM_NTASKS"), "SLURM_NTASKS is missing"},
      {With(kSlurm, "SLURM_PROCID", "4"), "SLURM_PROCID is '4'"},
      {Without(kSlurm, "SLURM_JOB_NODELIST"), "set MASTER_ADDR"},
      {With(kSlurm, "SLURM_JOB_NODELIST", "node[1-"), "node[1-"},
      {With(kSlurm, "MASTER_PORT", "x"), "MASTER_PORT is 'x'"},
      {Without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE"},
      {Without(kOpenMpi, "MASTER_ADDR"), "MASTER_ADDR is missing"},
      {{{kTokenVariable, "x"}}, "WORLD_SIZE is missing"},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParseLaunchEnvironment(c.map).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.expected;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.expected));
  }
}

TEST(LaunchEnvironmentTest, CurrentEnvironment) {
  setenv("SHARDGRAPH_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(CurrentEnvironment().at("SHARDGRAPH_TEST_VARIABLE"), "a=b");
}

TEST(ExpandNodeListTest, Lists) {
  EXPECT_THAT(*ExpandNodeList("login"), ElementsAre("login"));
  EXPECT_THAT(*ExpandNodeList("a,b-1,c"), ElementsAre("a", "b-1", "c"));
  EXPECT_THAT(*ExpandNodeList("node[01-03,7],x"),
              ElementsAre("node01", "node02", "node03", "node7", "x"));
  EXPECT_THAT(*ExpandNodeList("n[8-11]"),
              ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(*ExpandNodeList("n[098-101]"),
              ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(*ExpandNodeList("r[1-2]n[1-2].cluster"),
              ElementsAre("r1n1.cluster", "r1n2.cluster", "r2n1.cluster",
                          "r2n2.cluster"));
}

TEST(ExpandNodeListTest, Malformed) {
  for (const std::string list :
       {"", "a,", ",a", "n[1-2", "n1-2]", "n[2-1]", "n[]", "n[1,]", "n[a-b]",
        "n[1-2-3]", "n[-1]", "n[0-99999999]", "n[0-999]x[0-999]"}) {
    const absl::Status status = ExpandNodeList(list).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << list;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + list + "'"));
  }
}

}  // namespace
}  // namespace shardgraph
