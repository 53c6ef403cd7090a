// Sums over ranks on a mesh of two by two.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/test_graph.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

class Mesh {
 public:
  Mesh() {
    test_.graph().groups = {
        {"world", 4, 1}, {"shard", 2, 1}, {"replicate", 2, 2}};
    test_.SetPhase("micro");
  }

  // A gradient, reduced over the groups one after another and accumulated.
  absl::Status Gradient(const std::vector<std::string>& groups) {
    test_.SetPhase("micro");
    const BufferId x = test_.AddBuffer("x", 64, Lifetime::kRun);
    const BufferId gradient = test_.AddBuffer("gradient", 64, Lifetime::kPhase);
    const BufferId shard = test_.AddBuffer("shard", 64, Lifetime::kStep,
                                           MemoryKind::kGradientShard);
    test_.Compute({x}, {gradient});
    for (const std::string& group : groups) AllReduce(gradient, group);
    test_.Accumulate(shard, gradient);
    test_.SetPhase("update");
    const BufferId master = test_.AddBuffer("master", 64, Lifetime::kRun);
    test_.Sgd(master, shard, {0, 64, 0});
    return Verify(MakePlan(test_.graph(), 2));
  }

  void AllReduce(BufferId buffer, const std::string& group) {
    test_.Add("all_reduce", {test_.View(buffer)}, {test_.View(buffer)},
              Attributes()
                  .SetString(kGroupAttribute, group)
                  .SetInt("size", test_.graph().FindGroup(group)->size),
              LaneKind::kReduce);
  }

  TestGraph& test() { return test_; }

 private:
  TestGraph test_{4};
};

TEST(VerifyReductionsTest, GradientsAreSummedOverEveryRankOnce) {
  for (const auto& groups : std::vector<std::vector<std::string>>{
           {"world"}, {"shard", "replicate"}, {"replicate", "shard"}}) {
    EXPECT_TRUE(Mesh().Gradient(groups).ok()) << Mesh().Gradient(groups);
  }
  for (const auto& groups :
       std::vector<std::vector<std::string>>{{},
                                             {"shard"},
                                             {"replicate"},
                                             {"shard", "shard"},
                                             {"world", "shard"},
                                             {"shard", "replicate", "shard"}}) {
    const absl::Status status = Mesh().Gradient(groups);
    EXPECT_NE(status.message().find("each of the 4 ranks once"),
              absl::string_view::npos)
        << status;
  }
}

// In place of a reduce_scatter: pieces are exchanged and added up.
TEST(VerifyReductionsTest, PiecesThatAreExchangedAreAddedUp) {
  const auto verify = [](const std::string& exchanged_over, int64_t added_up,
                         const std::string& summed_over) {
    Mesh mesh;
    TestGraph& test = mesh.test();
    const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
    const BufferId gradient = test.AddBuffer("gradient", 64);
    const BufferId pieces = test.AddBuffer("pieces", 64);
    const BufferId sum = test.AddBuffer("sum", 64 / added_up);
    const BufferId shard = test.AddBuffer(
        "shard", 64 / added_up, Lifetime::kStep, MemoryKind::kGradientShard);
    test.Compute({x}, {gradient});
    test.Add("all_to_all", {test.View(gradient)}, {test.View(pieces)},
             Attributes()
                 .SetString(kGroupAttribute, exchanged_over)
                 .SetInt("size", 2),
             LaneKind::kReduce);
    test.Add("sum_pieces", {test.View(pieces)}, {test.View(sum)},
             Attributes().SetInt("size", added_up), LaneKind::kReduce);
    mesh.AllReduce(sum, summed_over);
    test.Accumulate(shard, sum);
    test.SetPhase("update");
    const BufferId master =
        test.AddBuffer("master", 64 / added_up, Lifetime::kRun);
    test.Sgd(master, shard, {0, 64 / added_up, 0});
    return std::string(Verify(MakePlan(test.graph(), 2)).message());
  };
  EXPECT_EQ(verify("shard", 2, "replicate"), "");
  EXPECT_NE(verify("shard", 2, "shard").find("each of the 4 ranks once"),
            std::string::npos);
  EXPECT_NE(verify("shard", 4, "replicate").find("not one of each rank"),
            std::string::npos);
}

TEST(VerifyReductionsTest, NormsAreSummedOverTheirShards) {
  const auto norm = [](const std::string& squares_of,
                       const std::string& summed_over) {
    Mesh mesh;
    TestGraph& test = mesh.test();
    const BufferId x = test.AddBuffer("x", 64, Lifetime::kRun);
    const BufferId gradient = test.AddBuffer("gradient", 64);
    test.Compute({x}, {gradient});
    mesh.AllReduce(gradient, "world");
    const BufferId sums = test.AddBuffer("sums", 2);
    const auto f64 = [&test](ValueId value) {
      test.graph().values[value].type = TensorType(DType::kF64, {1});
      return value;
    };
    test.Add("sum_of_squares", {test.View(gradient)}, {f64(test.View(sums))},
             Attributes()
                 .SetString(kGroupAttribute, squares_of)
                 .SetInts("segments", {0, 64, 0}));
    if (!summed_over.empty()) {
      test.Add("all_reduce", {f64(test.View(sums))}, {f64(test.View(sums))},
               Attributes()
                   .SetString(kGroupAttribute, summed_over)
                   .SetInt("size", 2),
               LaneKind::kReduce);
    }
    const BufferId scale =
        test.AddBuffer("scale", 6, Lifetime::kRun, MemoryKind::kState);
    test.Add("finish_gradients", {f64(test.View(sums))},
             {f64(test.View(scale, 0, 2))});
    return std::string(Verify(MakePlan(test.graph(), 2)).message());
  };
  EXPECT_EQ(norm("shard", "shard"), "");
  EXPECT_NE(norm("shard", "").find("not summed over it"), std::string::npos);
  EXPECT_NE(norm("shard", "replicate").find("over another"), std::string::npos);
}

TEST(VerifyReductionsTest, StateIsSummedOverTheWorld) {
  for (const char* group : {"world", "shard"}) {
    Mesh mesh;
    const BufferId state = mesh.test().AddBuffer(
        "step_state", 64, Lifetime::kRun, MemoryKind::kState);
    mesh.AllReduce(state, group);
    EXPECT_EQ(Verify(MakePlan(mesh.test().graph(), 1)).ok(),
              std::string(group) == "world");
  }
}

}  // namespace
}  // namespace shardgraph
