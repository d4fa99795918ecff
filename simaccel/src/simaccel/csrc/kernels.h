// Every operator that has no function of its own here: the CPU's kernel on the same memory.
#pragma once
#include "tensors.h"

namespace simaccel {
struct OperatorFacts {
  std::string name;
  bool is_view = false;
  bool waits = false;             // the form of its result depends on numbers
  bool takes_masks = false;       // waits if an index is a mask; indices may be on the CPU
  bool needs_fp8 = false;         // products of 8-bit floats
  bool draws_by_default = false;  // random numbers, of a generator that it is not given
  bool is_product = false, is_matmul = false;  // uses a workspace of cuBLAS; of cuBLASLt
};
const OperatorFacts& facts_of(const c10::OperatorHandle&);

void run_on_cpu(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);
void raise_without_kernel(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);

uint64_t num_kernels();
std::map<std::string, uint64_t> kernel_counts();

// Workspaces that torch allocates at the first product of a thread's cuBLAS handle on a stream, and keeps.
void use_workspace(const OperatorFacts&, int device);
void free_workspaces();
}  // namespace simaccel
