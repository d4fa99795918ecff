// Random numbers: the CPU's algorithm, with a state of its own for each device.
#pragma once
#include "settings.h"

namespace simaccel {
const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
at::Generator cpu_generator_of(const at::Generator&);  // what kernels use

// Kernels that take no generator, such as that of dropout, draw from the CPU's default one. Meanwhile it has the state of
// the device's generator.
class DrawsOfDevice {
 public:
  explicit DrawsOfDevice(int device);
  ~DrawsOfDevice();

 private:
  at::Generator cpu_, device_;
  at::Tensor state_of_cpu_;
};
}  // namespace simaccel
