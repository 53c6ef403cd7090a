// The median of measured figures.
#ifndef TOOLS_TRACE_MEDIAN_H_
#define TOOLS_TRACE_MEDIAN_H_

#include <vector>

namespace shardgraph {

// Of an even number, the mean of the two in the middle; 0 of none.
double MedianOf(std::vector<double> values);

}  // namespace shardgraph

#endif  // TOOLS_TRACE_MEDIAN_H_
