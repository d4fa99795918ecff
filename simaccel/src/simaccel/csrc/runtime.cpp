// Devices, streams and events as c10 sees them.
#include "device_memory.h"
#include "host_threads.h"

namespace simaccel {
struct Event {
  int device;
  Clock clock;
  std::chrono::steady_clock::time_point time;
  int num_polls = 0;
};
static c10::Stream handle_of(int device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, c10::DeviceIndex(device)), id);
}
constexpr int kPoolStreams = 32;  // torch hands out this many streams in turn

static bool poll_event(Event& event) {
  Lock lock(mutex);
  if (!known_to_any_thread(event.clock) && event.num_polls++ < settings.num_polls) return false;
  host_learns(event.clock);
  return true;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }
  c10::DeviceIndex deviceCount() const noexcept override { return c10::DeviceIndex(settings.num_devices); }
  c10::Device getDevice() const override { return {kDeviceType, c10::DeviceIndex(current_device())}; }
  void setDevice(c10::Device device) const override {
    note_thread_of_device(device.index());
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < settings.num_devices) set_current_device(device.index());
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto previous = getDevice();
    setDevice(device);
    return previous;
  }

  c10::Stream getStream(c10::Device device) const override {
    int index = index_of(device);
    return handle_of(index, current_stream_id(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return handle_of(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool = false) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int = 0) const override {
    static std::map<int, int> next;
    Lock lock(mutex);
    int index = index_of(device);
    return handle_of(index, 1 + next[index]++ % kPoolStreams);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto previous = getStream(stream.device());
    current_stream_id(stream.device_index()) = stream.id();
    return previous;
  }
  bool queryStream(const c10::Stream& stream) const override {
    raise_pending_finding();
    return poll_stream(stream_number(stream.device_index(), stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    raise_pending_finding();
    host_waits_for_stream(stream_number(stream.device_index(), stream.id()), "stream.synchronize");
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    raise_pending_finding();
    note_wait("device synchronize", false);
    host_learns(clock_of_device(device));
  }

  void record(void** handle, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*handle) *handle = new Event{stream.device_index()};
    auto* event = (Event*)*handle;
    TORCH_CHECK(event->device == stream.device_index(), "Event device ", event->device,
                " does not match recording stream's device ", int(stream.device_index()), ".");
    int number = stream_number(stream.device_index(), stream.id());
    launch(number);
    event->clock = clock_of(number);
    event->time = std::chrono::steady_clock::now();
    event->num_polls = 0;
  }
  void block(void* handle, const c10::Stream& stream) const override {
    if (handle) stream_waits(stream_number(stream.device_index(), stream.id()), ((Event*)handle)->clock);
  }
  bool queryEvent(void* handle) const override { return !handle || poll_event(*(Event*)handle); }
  void synchronizeEvent(void* handle) const override {
    raise_pending_finding();
    if (handle) host_waits(((Event*)handle)->clock, "event.synchronize", false);
  }
  void destroyEvent(void* handle, const c10::DeviceIndex) const noexcept override { delete (Event*)handle; }
  double elapsedTime(void* first, void* last, const c10::DeviceIndex) const override {
    TORCH_CHECK_VALUE(first && last, "Both events must be recorded before calculating elapsed time.");
    Lock lock(mutex);
    auto *begin = (Event*)first, *end = (Event*)last;
    TORCH_CHECK(covers(thread_clock(), begin->clock) && covers(thread_clock(), end->clock),
                "Both events must be completed before calculating elapsed time. (Simulated device: this thread did not wait for them)");
    return std::chrono::duration<double, std::milli>(end->time - begin->time).count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    device_allocator.recordStream(pointer, stream);
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace simaccel
