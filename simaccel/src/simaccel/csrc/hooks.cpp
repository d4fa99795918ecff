// What torch asks its CUDA build: there are devices, page-locked memory and generators.
#include "hooks.h"

#include "device_memory.h"
#include "generators.h"
#include "page_locked.h"

namespace simaccel {
struct Hooks final : at::CUDAHooksInterface {
  Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return settings.num_devices > 0; }
  bool hasCUDA() const override { return settings.num_devices > 0; }
  bool hasCUDART() const override { return true; }
  bool hasROCM() const override { return settings.is_rocm; }
  bool hasCuBLASLt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  std::string showConfig() const override { return "simulated CUDA"; }

  int getNumGPUs() const override { return settings.num_devices; }
  c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(settings.num_devices); }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(simaccel::current_device()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    int previous = simaccel::current_device();
    if (device >= 0) set_current_device(device);
    return c10::DeviceIndex(previous);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    raise_pending_finding();
    note_wait("device synchronize", false);
    host_learns(clock_of_device(device));
  }

  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return page_locked_allocator(); }
  bool isPinnedPtr(const void* address) const override { return is_page_locked(address); }
  c10::Device getDeviceFromPtr(void* address) const override {
    return {kDeviceType, c10::DeviceIndex(device_of_address(address))};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device = -1) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device = -1) const override { return new_generator(device); }
};

void install_hooks() {
  // torch asks for its hooks while it is imported and keeps an object without functions, which gets those of this class.
  auto& kept = at::detail::getCUDAHooks();
  static Hooks hooks{at::CUDAHooksArgs()};
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
  std::memcpy((void*)&kept, (void*)&hooks, sizeof(void*));
}
}  // namespace simaccel
namespace at {
using simaccel::Hooks;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}  // namespace at
