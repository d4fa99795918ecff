// The module's functions in Python.
#include "bindings.h"

#include "device_memory.h"
#include "generators.h"
#include "hooks.h"
#include "host_copies.h"
#include "host_threads.h"
#include "kernels.h"
#include "page_locked.h"
#include "registration.h"

namespace simaccel {
static py::dict memory_stats(int device) {
  auto stats = device_allocator.getDeviceStats(c10::DeviceIndex(device));
  py::dict all;
  auto put = [&](const char* name, const c10::CachingAllocator::StatArray& pools) {
    const char* pool_names[] = {"all", "small_pool", "large_pool"};
    for (int pool = 0; pool < 3; pool++) {
      std::string key = std::string(name) + "." + pool_names[pool] + ".";
      all[(key + "current").c_str()] = pools[pool].current;
      all[(key + "peak").c_str()] = pools[pool].peak;
      all[(key + "allocated").c_str()] = pools[pool].allocated;
      all[(key + "freed").c_str()] = pools[pool].freed;
    }
  };
  auto [num_splits, split_bytes] = device_allocator.inactive_split(device);
  stats.inactive_split[0].current = num_splits;
  stats.inactive_split_bytes[0].current = split_bytes;
  put("allocation", stats.allocation);
  put("segment", stats.segment);
  put("active", stats.active);
  put("inactive_split", stats.inactive_split);
  put("allocated_bytes", stats.allocated_bytes);
  put("reserved_bytes", stats.reserved_bytes);
  put("active_bytes", stats.active_bytes);
  put("inactive_split_bytes", stats.inactive_split_bytes);
  put("requested_bytes", stats.requested_bytes);
  for (auto* name : {"oversize_allocations", "oversize_segments"})
    for (auto* figure : {"current", "peak", "allocated", "freed"}) all[(std::string(name) + "." + figure).c_str()] = 0;
  all["num_alloc_retries"] = stats.num_alloc_retries;
  all["num_ooms"] = stats.num_ooms;
  all["num_device_alloc"] = stats.num_device_alloc;
  all["num_device_free"] = stats.num_device_free;
  all["num_sync_all_streams"] = 0;
  all["max_split_size"] = -1;
  return all;
}

static void bind_devices(py::module_& m) {
  m.def("configure", &configure);
  m.def("device_count", [] { return settings.num_devices; });
  m.def("set_device_count", [](int number) {
    TORCH_CHECK(number >= 0 && number <= settings.num_cards);
    settings.num_devices = number;
  });
  m.def("get_device", &current_device);
  m.def("set_device", [](int device) { if (device >= 0) set_current_device(device); });
  m.def("exchange_device", [](int device) {
    int previous = current_device();
    if (device >= 0) set_current_device(device);
    return previous;
  });
  m.def("synchronize", [] {
    raise_pending_finding();
    note_wait("device synchronize", false);
    host_learns(clock_of_device(current_device()));
  });
  m.def("elapsed_time", [](py::object begin, py::object end) {
    return ((THPEvent*)begin.ptr())->event.elapsedTime(((THPEvent*)end.ptr())->event);
  });
  m.def("default_generator", [](int device) {
    return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(default_generator(device)));
  });
}

static void bind_memory(py::module_& m) {
  m.def("memory_stats", &memory_stats, py::arg("device") = 0);
  m.def("reset_peak", [](int device) { device_allocator.resetPeakStats(c10::DeviceIndex(device)); });
  m.def("reset_accumulated", [](int device) { device_allocator.resetAccumulatedStats(c10::DeviceIndex(device)); });
  m.def("empty_cache", [] { device_allocator.emptyCache(); });
  m.def("memory_info", [](int device) { return device_allocator.getMemoryInfo(c10::DeviceIndex(device)); });
  m.def("renew_memory", &renew_device_memory);
  m.def("total_memory", [] { return settings.total_bytes; });
  m.def("set_limit", [](size_t bytes, std::optional<int> device) {
    Lock lock(mutex);
    if (device) settings.memory_limits.at(*device) = bytes;
    else settings.memory_limits.assign(settings.num_cards, bytes);
  }, py::arg("bytes"), py::arg("device") = py::none());
  m.def("limit", [](int device) { return settings.memory_limits.at(device); }, py::arg("device") = 0);
  m.def("fail_allocation", [](int64_t number) {
    Lock lock(mutex);
    settings.allocations_until_failure = number;
  }, py::arg("number") = 1);
  m.def("resize_storage", [](uintptr_t storage, size_t bytes) { resize_storage((c10::StorageImpl*)storage, bytes); });
  m.def("free_workspaces", &free_workspaces);
  m.def("set_pinned_limit", [](size_t bytes) { settings.page_locked_limit = bytes; });
  m.def("page_locked_stats", &page_locked_stats);
  m.def("reset_page_locked_stats", &reset_page_locked_stats, py::arg("peak"));
  m.def("free_page_locked_cache", &free_page_locked_cache);
  m.def("record_peak", [](size_t bytes) { device_allocator.recorded_peak_bytes = bytes; });
  m.def("recorded_peak", [] {
    std::vector<std::pair<size_t, std::string>> blocks;
    for (auto& [bytes, stack] : device_allocator.recorded_peak) blocks.emplace_back(bytes, to_text(stack));
    return blocks;
  });
}

static void bind_checks(py::module_& m) {
  m.def("findings", &findings, py::arg("clear") = false);
  m.def("raise_pending", &raise_pending_finding);
  m.def("install_fault_handler", &install_fault_handler);
  m.def("set_log_only", [](bool on) { settings.only_logs = on; });
  m.def("set_stacks", [](bool on) { settings.keeps_stacks = on; });
  m.def("set_poison", [](bool on) { settings.poisons_memory = on; });
  m.def("set_sync_debug_mode", [](int mode) { settings.sync_debug_mode = mode; });
  m.def("sync_debug_mode", [] { return settings.sync_debug_mode; });
  m.def("num_syncs", &num_waits);
  m.def("syncs", [](bool clear) {
    std::vector<std::pair<std::string, std::string>> all;
    for (auto& wait : waits(clear)) all.emplace_back(wait.reason, to_text(wait.stack));
    return all;
  }, py::arg("clear") = false);
  m.def("num_kernels", &num_kernels);
  m.def("kernel_counts", &kernel_counts);
  m.def("num_copies_in_flight", &num_copies_in_flight);
}

static void bind_threads(py::module_& m) {
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    let_autograd_threads_finish();
    end_stacks();
  }));
  m.def("knowledge_of_thread", &knowledge_of_thread);
  m.def("begin_thread", &begin_thread);
  m.def("learn", &learn);
  m.def("learn_from_all_threads", &learn_from_all_threads);
  m.def("follow_python_threads", &follow_python_threads);
}
}  // namespace simaccel

PYBIND11_MODULE(simaccel_device, m) {
  using namespace simaccel;
  read_environment();
  settings.memory_limits.assign(settings.num_cards, settings.total_bytes);
  map_device_memory();
  device_allocator.start();
  c10::SetAllocator(kDeviceType, &device_allocator, 255);
  start_page_locked_memory();
  install_fault_handler();
  install_hooks();
  m.def("register_operators", &register_operators);
  m.def("register_library", &register_library);
  bind_devices(m);
  bind_memory(m);
  bind_checks(m);
  bind_threads(m);
  bind_dry(m);
  bind_collectives(m);
}
