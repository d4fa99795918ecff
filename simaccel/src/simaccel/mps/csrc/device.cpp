// The device: memory, guard, random generator, hooks.
#include "mps.h"
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <atomic>
#include <cstring>

namespace simaccel_mps {
static std::atomic<size_t> allocated{0};

struct Memory {
  size_t bytes;
  c10::DataPtr data;
};
static void give_back(void* context) {
  auto* memory = static_cast<Memory*>(context);
  allocated -= memory->bytes;
  delete memory;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, kDevice};
    auto* memory = new Memory{bytes, c10::GetCPUAllocator()->allocate(bytes)};
    allocated += bytes;
    std::memset(memory->data.get(), 0xFF, bytes);  // NaN: memory that nobody wrote shows
    return {memory->data.get(), memory, &give_back, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
static Allocator the_allocator;
c10::Allocator* allocator() { return &the_allocator; }
size_t allocated_bytes() { return allocated; }

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kMps> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream getNewStream(c10::Device, int = 0) const override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(MPS, Guard)

struct Generator final : c10::GeneratorImpl {
  at::Generator inner = at::detail::createCPUGenerator();
  Generator() : GeneratorImpl(kDevice, c10::DispatchKeySet(kKey)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override {
    auto* copy = new Generator;
    copy->inner = inner.clone();
    return copy;
  }
  static c10::DeviceType device_type() { return kMps; }
};
const at::Generator& default_generator() {
  static const at::Generator generator = at::make_generator<Generator>();
  return generator;
}
at::Generator cpu_generator(const at::Generator& generator) {
  auto* own = dynamic_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  return own ? own->inner : generator;
}

struct Hooks final : at::MPSHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasMPS() const override { return true; }
  bool isOnMacOSorNewer(unsigned, unsigned) const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex = -1) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex = -1) const override { return at::make_generator<Generator>(); }
  c10::Allocator* getMPSDeviceAllocator() const override { return allocator(); }
  c10::Device getDeviceFromPtr(void*) const override { return kDevice; }
  void deviceSynchronize() const override {}
  void emptyCache() const override {}
};

void register_hooks() {
  c10::SetAllocator(kMps, allocator(), 255);
  // torch asks for the hooks while it is imported and keeps a stub; the stub gets this class's functions.
  auto& stub = at::detail::getMPSHooks();
  static Hooks hooks;
  static_assert(sizeof(Hooks) == sizeof(at::MPSHooksInterface));
  std::memcpy((void*)&stub, (void*)&hooks, sizeof(void*));
}
}  // namespace simaccel_mps
