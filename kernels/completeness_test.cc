// Every op has kernels, and no table names what is no op. That every op has a
// conformance case is asserted by each family's test.
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/kernels.h"
#include "kernels/op_table.h"
#include "kernels/reference/kernels.h"

namespace shardgraph {
namespace {

TEST(Completeness, EveryOpHasKernels) {
  for (const OpDef* op : AllOps()) {
    EXPECT_TRUE(ReferenceKernels().Has(op->name)) << op->name;
    EXPECT_TRUE(CpuKernels().Has(op->name)) << op->name;
    EXPECT_TRUE(CudaKernels().Has(op->name)) << op->name;
  }
}

TEST(Completeness, OpsAreWellFormed) {
  std::set<std::string> names;
  for (const OpDef* op : AllOps()) {
    const std::string name(op->name);
    EXPECT_TRUE(names.insert(name).second) << name << " occurs twice";
    EXPECT_EQ(FindOp(name), op);
    EXPECT_NE(op->infer, nullptr) << name;
    for (size_t r = 0; r < op->in_place.size(); ++r) {
      EXPECT_FALSE(op->in_place[r] >= 0 && (op->accumulates >> r & 1) != 0)
          << name << ": result " << r << " is tied twice";
    }
  }
  EXPECT_EQ(FindOp("no such op"), nullptr);
}

TEST(Completeness, EveryOpIsOfOneFamily) {
  size_t ops = 0;
  for (const OpFamily& family : OpFamilies()) {
    ops += family.ops.size();
    for (const OpDef* op : family.ops)
      EXPECT_EQ(FamilyOf(op->name), family.name) << op->name;
  }
  EXPECT_EQ(ops, AllOps().size());
  EXPECT_EQ(FamilyOf("column_sum"), "matmul");
  EXPECT_EQ(FamilyOf("no such op"), "");
}

}  // namespace
}  // namespace shardgraph
