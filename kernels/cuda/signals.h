// Kernels by which a GPU takes in what the host has uploaded, and tells it
// where it stands and what came out. Plain, for .cu files.
#ifndef KERNELS_CUDA_SIGNALS_H_
#define KERNELS_CUDA_SIGNALS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/record_ring.h"

namespace shardgraph::cuda {

// *where = value, behind everything before it on the stream.
cudaError_t LaunchMark(int64_t* where, int64_t value, cudaStream_t stream);

// Appends ring->words words of device memory; `words` is that number.
cudaError_t LaunchAppend(RecordRing* ring, const void* from, int64_t words,
                         cudaStream_t stream);

// to = the slot whose turn it is, of two [bytes of slots[slot * slot_bytes]]:
// by the parity of *turn. All are device memory; slots and slot_bytes multiples
// of 16.
cudaError_t LaunchTake(void* to, const void* slots, int64_t slot_bytes,
                       const int64_t* turn, int64_t bytes, cudaStream_t stream);

// Behind the takes of a turn: the next turn begins, and *taken, of the host, is
// its number.
cudaError_t LaunchEndTurn(int64_t* turn, int64_t* taken, cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_SIGNALS_H_
