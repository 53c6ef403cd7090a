#include "fsdp/checkpoint/boxes.h"

#include "kernels/status_macros.h"

namespace shardgraph {

std::vector<Box> BoxesOfRange(absl::Span<const int64_t> shape, int64_t begin,
                              int64_t elements) {
  if (elements == 0) return {};
  if (shape.empty()) return {Box{}};
  const absl::Span<const int64_t> row_shape = shape.subspan(1);
  const int64_t row = NumElements(row_shape);
  const int64_t end = begin + elements;
  std::vector<Box> boxes;
  const auto part_of_row = [&](int64_t from, int64_t to) {
    for (Box& box : BoxesOfRange(row_shape, from % row, to - from)) {
      box.offset.insert(box.offset.begin(), from / row);
      box.size.insert(box.size.begin(), 1);
      boxes.push_back(std::move(box));
    }
  };
  const int64_t first_row = (begin + row - 1) / row, last_row = end / row;
  if (first_row > last_row) {  // inside one row
    part_of_row(begin, end);
    return boxes;
  }
  if (begin < first_row * row) part_of_row(begin, first_row * row);
  if (first_row < last_row) {
    Box rows;
    rows.offset.assign(shape.size(), 0);
    rows.size.assign(shape.begin(), shape.end());
    rows.offset[0] = first_row;
    rows.size[0] = last_row - first_row;
    boxes.push_back(std::move(rows));
  }
  if (last_row * row < end) part_of_row(last_row * row, end);
  return boxes;
}

absl::Status ForEachRun(
    absl::Span<const int64_t> shape, const Box& box,
    absl::FunctionRef<absl::Status(int64_t in_tensor, int64_t in_box,
                                   int64_t elements)>
        run) {
  const int64_t numel = box.numel();
  if (numel == 0) return absl::OkStatus();
  // Dimensions [outer, rank) make up a run: all but its first are whole.
  size_t outer = shape.size();
  int64_t length = 1;
  while (outer > 0) {
    --outer;
    length *= box.size[outer];
    if (box.size[outer] != shape[outer]) break;
  }
  const Dims strides = ContiguousStrides(shape);
  for (int64_t in_box = 0; in_box < numel; in_box += length) {
    int64_t index = in_box / length, in_tensor = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      int64_t at = box.offset[d];
      if (d < outer) {
        at += index % box.size[d];
        index /= box.size[d];
      }
      in_tensor += at * strides[d];
    }
    SG_RETURN_IF_ERROR(run(in_tensor, in_box, length));
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
