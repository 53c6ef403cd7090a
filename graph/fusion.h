// Fusion: chains of nodes are replaced by one node each, as a table of patterns
// says.
//
// A pattern is two texts. `replaces` lists nodes in program order, `by` is the
// node that takes their place:
//
//   replaces  sum = add(a, b); y, rstd = rms_norm(sum, weight)
//   by        sum, y, rstd = add_rms_norm(a, b, weight)
//
// Names stand for values; a name that occurs twice is one value. All results of
// a node are named; a last operand "name..." stands for however many there are.
// "y.left" and "y.right" are the halves of the columns of y [N, C].
// Behind a node stand attributes: those of `replaces` must have that value
// (an absent one counts as 0 or ""), those of `by` are set. Otherwise the fused
// node has the attributes of all that it replaces.
//
// A node marked "*" is shared: the fused node does its work again by itself,
// from its operands, and it stays for whoever else reads its results (Lower
// drops it if nobody does).
//
//   replaces  *q = rotary(x, p); out, lse = attention(q, k, v)
//   by        out, lse = attention(x, k, v, p) has_rotary=1
//
// A match is replaced only where that changes no byte that anybody else reads:
// - The nodes are of one phase, direction and lane. A shared node may be of
//   another direction if it reads nothing that is made again for backward.
// - Results that `by` doesn't name are read by the replaced nodes alone; those
//   of shared nodes by anybody, but nobody writes over them before the replaced
//   nodes have read them.
// - What lies between the nodes in the program leaves their operands and
//   results alone, so that the replaced ones can meet at the place of the last
//   or the first; of shared nodes that is the operands, which must be the same
//   there.
// - The fused op infers the types of the results that it takes over, with the
//   strides they have, and none of them shares elements with another or with
//   what it reads unless the op ties them.
// - Nodes that accumulate do so in the fused op too, if it can; shared ones
//   don't.
// - No two nodes have different values of an attribute, and nodes of one op
//   have the same attributes, but for those that `by` sets.
// Views of one buffer that interleave (columns of a product) are apart.
// Values keep their ids and bytes. The op must compute what the nodes did, bit
// for bit: same rounding points, same order of sums; but for what a library's
// epilogue does otherwise, as the op's header says.
#ifndef GRAPH_FUSION_H_
#define GRAPH_FUSION_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/graph.h"

namespace shardgraph {

struct FusionPattern {
  absl::string_view name;
  absl::string_view replaces;
  absl::string_view by;
  // No gain everywhere: tried only for targets whose `fusions` name it.
  bool by_target = false;
};

// The table, in the order in which patterns are tried.
absl::Span<const FusionPattern> FusionPatterns();
// Names of those that a target must name.
std::vector<std::string> FusionsByTarget();

// Replaces all matches of one pattern in a phase; returns how many.
int Fuse(Graph& graph, PhaseId phase, const FusionPattern& pattern);

// A pattern as Fuse uses it; variables are numbered.
struct FusionNode {
  const OpDef* op = nullptr;
  std::vector<int> results;
  std::vector<int> operands;
  bool rest = false;    // the last operand stands for any number
  bool shared = false;  // stays where it is
  Attributes attributes;
};
// Variable `half` is the left or right half of variable `whole`.
struct FusionHalf {
  int half = 0;
  int whole = 0;
  bool right = false;
};
struct ParsedFusion {
  std::vector<FusionNode> replaces;
  std::vector<FusionHalf> halves;
  FusionNode by;
  int variables = 0;
  // By variable: the shared node that it is a result of, or half of one; -1.
  std::vector<int> sources;
};
// A text that is not a pattern is an invariant violation.
ParsedFusion ParseFusion(const FusionPattern& pattern);

}  // namespace shardgraph

#endif  // GRAPH_FUSION_H_
