// aten/src/ATen/cuda/CublasHandlePool.cpp: a workspace for each pair of handle and stream. Each host thread has a handle;
// a later thread uses the handle of one that ended. cuBLASLt shares the workspace unless it is told not to.
#include "kernels.h"

namespace simaccel {
static std::map<std::tuple<int, int, bool>, c10::DataPtr>& workspaces = *new std::map<std::tuple<int, int, bool>, c10::DataPtr>;  // handle, stream, cuBLASLt's own
static std::set<int>& used_handles = *new std::set<int>;

struct BlasHandle {
  int number = 0;
  BlasHandle() {
    Lock lock(mutex);
    while (used_handles.count(number)) number++;
    used_handles.insert(number);
  }
  ~BlasHandle() {
    Lock lock(mutex);
    used_handles.erase(number);
  }
};

void use_workspace(const OperatorFacts& facts, int device) {
  if (!settings.has_workspaces || !facts.is_product) return;
  static thread_local BlasHandle handle;
  bool is_own = facts.is_matmul && settings.has_matmul_workspace;
  std::tuple<int, int, bool> key{handle.number, current_stream(device), is_own};
  {
    Lock lock(mutex);
    if (workspaces.count(key)) return;
  }
  CurrentDevice on(device);
  auto memory = device_allocator.allocate(is_own ? settings.matmul_workspace_bytes : settings.blas_workspace_bytes);
  Lock lock(mutex);
  workspaces[key] = std::move(memory);
}

void free_workspaces() {
  std::remove_reference_t<decltype(workspaces)> freed;
  Lock lock(mutex);
  std::swap(freed, workspaces);
}
}  // namespace simaccel
