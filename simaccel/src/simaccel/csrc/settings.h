// What the environment and Python choose, and the types that every file uses.
#pragma once
#include "torch_headers.h"

namespace simaccel {
namespace py = pybind11;
using at::IntArrayRef;
using at::Tensor;

constexpr c10::DeviceType kDeviceType = c10::DeviceType::CUDA;
constexpr c10::DispatchKey kDispatchKey = c10::DispatchKey::CUDA;

struct Settings {
  int num_cards = 2;                    // of the machine
  int num_devices = 2;                  // visible to this process
  std::vector<size_t> memory_limits;    // bytes that each device can allocate; at most total_bytes
  size_t total_bytes = size_t(8) << 30; // memory that a device reports
  size_t page_locked_limit = SIZE_MAX;  // bytes of page-locked memory in this process
  int capability = 89;
  bool is_rocm = false;

  bool has_workspaces = false;          // allocate the workspaces of cuBLAS
  bool has_matmul_workspace = false;    // cuBLASLt has workspaces of its own
  size_t blas_workspace_bytes = 0, matmul_workspace_bytes = 0;

  bool only_logs = false;               // list findings, do not raise them
  bool keeps_stacks = true;
  bool poisons_memory = true;           // new device memory is filled with NaN
  bool protects_pages = true;           // page-locked memory of a copy in flight is protected
  bool follows_threads = true;          // each host thread has a clock of its own
  int num_polls = 1;                    // queries that answer "not ready" before one answers "ready"
  int sync_debug_mode = 0;              // torch.cuda.set_sync_debug_mode: 0, 1 (warn), 2 (error)
  int64_t allocations_until_failure = 0;  // 1: the next one runs out of memory; 0: none does

  bool is_dry = false;
  bool dry_stacks = true, dry_scratch = false, dry_bool = true;
  size_t dry_known_bytes = 16384;       // largest storage whose numbers are computed in dry mode
};
extern Settings settings;

// Guards all state of the simulation. Never take the GIL while holding it.
extern std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

long environment_number(const char* name, long otherwise);
bool environment_is_dry();
void read_environment();
void configure(const py::dict& personality);

inline bool on_device(const Tensor& t) { return t.defined() && t.device().type() == kDeviceType; }

// Sets the current device for a scope.
struct CurrentDevice {
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  int previous;
};
int current_device();
void set_current_device(int device);  // raises for a device that is not there
int index_of(c10::Device);            // the current device where none is named
}  // namespace simaccel
