#pragma once
#include <string>
#include <vector>

namespace simaccel {
// `with_cuda`: operators that have a kernel in a CUDA build of torch. `without_cuda`: those that only have one for the CPU.
int register_operators(const std::vector<std::string>& with_cuda, const std::vector<std::string>& without_cuda);
// Operators of a library that has just been imported. Its kernels in Python for any device would allocate their temporaries
// on this one; the library's own CUDA kernels have none.
int register_library(const std::string& library);
}  // namespace simaccel
