// A simulated MPS device: memory of the host, kernels of the CPU, and only those operators that torch has on MPS.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <cstddef>
#include <string>
#include <vector>

namespace simaccel_mps {
constexpr c10::DeviceType kMps = c10::DeviceType::MPS;
constexpr c10::DispatchKey kKey = c10::DispatchKey::MPS;
inline const c10::Device kDevice{kMps, 0};

inline bool on_mps(const at::Tensor& t) { return t.defined() && t.device().type() == kMps; }

c10::Allocator* allocator();
size_t allocated_bytes();
const at::Generator& default_generator();
at::Generator cpu_generator(const at::Generator&);  // the CPU's generator behind one of this device
void register_hooks();

// A CPU tensor over the memory of a simulated one.
struct Aliases {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // simulated, CPU
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> storages;
  at::Tensor of(const at::Tensor&);
};
at::Tensor alias_of(const at::Tensor&);
at::Tensor on_device(const at::Tensor& computed_on_cpu);
void resize_storage(c10::StorageImpl*, size_t bytes);

}  // namespace simaccel_mps
