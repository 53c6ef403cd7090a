// Which operations of the device are ordered before which others.
//
// Every operation gets a serial number when it starts, and a Past: the set of
// operations that stream order, event edges, graph edges and waits of the host
// put before it. Two conflicting accesses by operations of which neither is in
// the other's past are a race, however the schedule went. Only the last
// kWindow operations are told apart; older ones count as ordered.
#ifndef TESTS_FAKE_CUDA_ORDER_H_
#define TESTS_FAKE_CUDA_ORDER_H_

#include <algorithm>
#include <bitset>
#include <cstdint>

namespace shardgraph::fake_cuda {

using Serial = uint32_t;

class Past {
 public:
  static constexpr Serial kWindow = 2048;

  // The union with `other`.
  void Join(const Past& other) {
    if (other.newest_ > newest_) {
      Advance(other.newest_);
      set_ |= other.set_;
    } else {
      Past copy = other;
      copy.Advance(newest_);
      set_ |= copy.set_;
    }
  }
  void Add(Serial serial) {
    Advance(std::max(serial, newest_));
    set_.set(serial % kWindow);
  }
  bool Contains(Serial serial) const {
    return serial + kWindow <= newest_ ||
           (serial <= newest_ && set_.test(serial % kWindow));
  }

 private:
  // Slots that numbers after newest_ will use hold older numbers: clear them.
  void Advance(Serial newest) {
    if (newest - newest_ >= kWindow) {
      set_.reset();
    } else {
      for (Serial s = newest_ + 1; s <= newest; ++s) set_.reset(s % kWindow);
    }
    newest_ = newest;
  }

  std::bitset<kWindow> set_;
  Serial newest_ = 0;
};

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_ORDER_H_
