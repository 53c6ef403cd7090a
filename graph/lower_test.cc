#include <string>

#include "graph/test_graph.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using Nodes = std::vector<NodeId>;

class LowerTest : public ::testing::Test {
 protected:
  LowerTest() {
    test_.SetPhase("p");
    x_ = test_.AddBuffer("x", 64, Lifetime::kRun);
  }

  TestGraph test_;
  BufferId x_;
};

TEST_F(LowerTest, DropsWhatNobodyReads) {
  const BufferId a = test_.AddBuffer("a", 64);
  const BufferId b = test_.AddBuffer("b", 64);
  const BufferId c = test_.AddBuffer("c", 64);
  const BufferId logits = test_.AddBuffer("logits", 64);
  test_.Compute({x_}, {a});      // 0: read by 1 only
  test_.Compute({a}, {b});       // 1: read by nobody
  test_.Compute({x_}, {c});      // 2: read by 3
  test_.Compute({c}, {x_});      // 3: persistent
  test_.Compute({c}, {logits});  // 4: an output
  test_.graph().outputs["logits"] = test_.View(logits);
  ASSERT_TRUE(Lower(test_.graph(), TargetSpec(), nullptr).ok());
  EXPECT_EQ(test_.graph().phases[0].nodes, (Nodes{2, 3, 4}));
}

TEST_F(LowerTest, KeepsWritersOfTheBytesThatAreRead) {
  const BufferId a = test_.AddBuffer("a", 256);
  test_.Add("compute", {}, {test_.View(a, 0, 64)});                 // 0
  test_.Add("compute", {}, {test_.View(a, 64, 64)});                // 1
  test_.Add("compute", {}, {test_.View(a, 128, 64)});               // 2
  test_.Add("compute", {test_.View(a, 32, 64)}, {test_.View(x_)});  // 3
  // Two adjoining ranges are one; what lies between them and the end is not.
  test_.Add("compute", {test_.View(a, 96, 16)}, {test_.View(x_)});  // 4
  ASSERT_TRUE(Lower(test_.graph(), TargetSpec(), nullptr).ok());
  EXPECT_EQ(test_.graph().phases[0].nodes, (Nodes{0, 1, 3, 4}));
}

TEST_F(LowerTest, ReadersBeforeTheWriterDoNotCount) {
  const BufferId a = test_.AddBuffer("a", 64);
  test_.Compute({x_}, {a});  // 0
  test_.Compute({a}, {x_});  // 1
  test_.Compute({x_}, {a});  // 2: nobody reads it afterwards
  ASSERT_TRUE(Lower(test_.graph(), TargetSpec(), nullptr).ok());
  EXPECT_EQ(test_.graph().phases[0].nodes, (Nodes{0, 1}));
}

TEST_F(LowerTest, GivesEachNodeItsWorkspace) {
  test_.Compute({x_}, {x_});
  test_.Compute({x_}, {x_});
  test_.Compute({x_}, {x_});
  const WorkspaceFunction workspace =
      [](const Graph& graph, const Node& node) -> absl::StatusOr<int64_t> {
    return (&node - graph.nodes.data()) * 1000;
  };
  ASSERT_TRUE(Lower(test_.graph(), TargetSpec(), workspace).ok());
  const Graph& graph = test_.graph();
  EXPECT_EQ(graph.node(0).workspace, kNone);
  ASSERT_NE(graph.node(1).workspace, kNone);
  ASSERT_NE(graph.node(2).workspace, kNone);
  const Buffer& buffer = graph.buffers[graph.node(2).workspace];
  EXPECT_EQ(buffer.bytes, 2000);
  EXPECT_EQ(buffer.kind, MemoryKind::kWorkspace);
  EXPECT_EQ(buffer.lifetime, Lifetime::kPhase);
  EXPECT_NE(buffer.name, graph.buffers[graph.node(1).workspace].name);
}

TEST_F(LowerTest, KeepsToTheBudgetOfTheTarget) {
  test_.Add("column_sum", {test_.View(x_)}, {test_.View(x_)});
  TargetSpec target;
  target.set_name("small");
  (*target.mutable_workspace_budget())["column_sum"] = 1;  // no family
  (*target.mutable_workspace_budget())["matmul"] = 999;
  const auto needs = [](int64_t bytes) -> WorkspaceFunction {
    return [bytes](const Graph&, const Node&) -> absl::StatusOr<int64_t> {
      return bytes;
    };
  };
  EXPECT_TRUE(Lower(test_.graph(), target, needs(999)).ok());
  const absl::Status status = Lower(test_.graph(), target, needs(1000));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("workspace_budget[\"matmul\"]"),
            absl::string_view::npos);
  EXPECT_EQ(Lower(test_.graph(), target,
                  [](const Graph&, const Node&) -> absl::StatusOr<int64_t> {
                    return absl::UnimplementedError("no kernel");
                  })
                .code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(LowerTest, AlignsBuffersAsTheTargetSays) {
  const BufferId shard = test_.AddBuffer("shard", 64, Lifetime::kRun);
  const BufferId whole = test_.AddBuffer("whole", 128);
  const BufferId odd = test_.AddBuffer("odd", 64, Lifetime::kRun);
  test_.graph().buffers[odd].alignment = 96;
  test_.Gather(shard, whole);
  test_.Compute({whole, odd}, {x_});
  const auto alignments = [&](int64_t buffer, int64_t window) {
    TargetSpec target;
    target.set_buffer_alignment(buffer);
    target.set_window_alignment(window);
    const WorkspaceFunction workspace =
        [](const Graph&, const Node& node) -> absl::StatusOr<int64_t> {
      return node.op->name == "compute" ? 8 : 0;
    };
    Graph graph = test_.graph();
    EXPECT_TRUE(Lower(graph, target, workspace).ok());
    std::vector<int64_t> result;
    for (BufferId id : {x_, shard, whole, odd, graph.node(1).workspace})
      result.push_back(graph.buffers[id].alignment);
    return result;
  };
  EXPECT_EQ(alignments(0, 0), (std::vector<int64_t>{256, 256, 256, 96, 256}));
  EXPECT_EQ(alignments(512, 4096),
            (std::vector<int64_t>{512, 4096, 4096, 1536, 512}));
}

}  // namespace
}  // namespace shardgraph
