#include "generators.h"

namespace simaccel {
struct DeviceGenerator final : c10::GeneratorImpl {
  at::Generator cpu;
  explicit DeviceGenerator(int device, uint64_t seed = c10::default_rng_seed_val)
      : GeneratorImpl({kDeviceType, c10::DeviceIndex(device)}, c10::DispatchKeySet(kDispatchKey)),
        cpu(at::detail::createCPUGenerator(seed)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override {
    auto* copy = new DeviceGenerator(device_.index());
    copy->cpu = cpu.clone();
    return copy;
  }
  static c10::DeviceType device_type() { return kDeviceType; }
};

const at::Generator& default_generator(int device) {
  static std::vector<at::Generator> all;
  Lock lock(mutex);
  while (all.size() < size_t(settings.num_cards)) all.push_back(at::make_generator<DeviceGenerator>(int(all.size())));
  return all.at(device < 0 ? current_device() : device);
}
at::Generator new_generator(int device) {
  return at::make_generator<DeviceGenerator>(device < 0 ? current_device() : device);
}
at::Generator cpu_generator_of(const at::Generator& generator) {
  auto* ours = dynamic_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
  return ours ? ours->cpu : generator;
}

DrawsOfDevice::DrawsOfDevice(int device)
    : cpu_(at::detail::getDefaultCPUGenerator()), device_(cpu_generator_of(default_generator(device))), state_of_cpu_(cpu_.get_state()) {
  cpu_.set_state(device_.get_state());
}
DrawsOfDevice::~DrawsOfDevice() {
  device_.set_state(cpu_.get_state());
  cpu_.set_state(state_of_cpu_);
}
}  // namespace simaccel
