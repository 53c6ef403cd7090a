// Where CUDA's shared libraries are: the usual folders, and those of Python's
// wheels. Depends on nothing of CUDA.
#ifndef KERNELS_CUDA_LIBRARY_PLACES_H_
#define KERNELS_CUDA_LIBRARY_PLACES_H_

#include <string>
#include <vector>

namespace shardgraph::cuda {

// What to give to dlopen, in this order, for a library by its file name
// ("libnccl.so.2"): the name alone, for the loader's own path; CUDA_HOME, else
// /usr/local/cuda; nvidia/*/lib of every Python environment that the variables
// VIRTUAL_ENV, CONDA_PREFIX and PYTHONPATH, the user's home and the system's
// folders show. Files in folders are there.
std::vector<std::string> LibraryPlaces(const std::string& file);

// The same places in words, for errors.
std::string LibraryPlacesInWords();

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_LIBRARY_PLACES_H_
