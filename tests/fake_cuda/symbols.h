// What the double reads from the running program's own ELF file: the names of
// kernels, for reports, and where `__shared__` variables lie.
#ifndef TESTS_FAKE_CUDA_SYMBOLS_H_
#define TESTS_FAKE_CUDA_SYMBOLS_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shardgraph::fake_cuda {

// The demangled name of the function at `address`, without its parameters, or
// the address in hexadecimal if the program is stripped.
std::string FunctionName(const void* address);

// "file.cu:123" of the code at `address` by addr2line, or the function's name.
std::string CodeLocation(const void* address);

// The sections that hold the program's `__shared__` variables (see device.h).
const std::vector<std::span<char>>& SharedVariables();

// Whether `address` lies in the program's own image: code, constants, globals.
bool InImage(const void* address);

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_SYMBOLS_H_
