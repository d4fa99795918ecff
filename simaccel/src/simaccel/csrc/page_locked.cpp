#include "page_locked.h"

#include "host_copies.h"

namespace simaccel {
static std::map<char*, PageLockedRegion>& regions = *new std::map<char*, PageLockedRegion>;
static std::atomic<char*> lowest{nullptr}, highest{nullptr};

size_t page_bytes() {
  static const size_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

PageLockedRegion* page_locked_region(const void* address) {
  auto next = regions.upper_bound((char*)address);
  if (next == regions.begin()) return nullptr;
  auto& region = std::prev(next)->second;
  return (char*)address < region.address + region.bytes ? &region : nullptr;
}
bool is_page_locked(const void* address) {
  Lock lock(mutex);
  return page_locked_region(address) != nullptr;
}
bool may_be_page_locked(const void* address) { return address >= lowest && address < highest; }

// ---------------------------------------------------------------- torch's allocator
struct CopyEvent {  // recorded when a block is freed that copies used
  Clock clock;
  char* block;
  int num_polls = 0;
};

struct PageLockedMemory final : at::CachingHostAllocatorImpl<c10::Stream, CopyEvent> {
  using HostBlock = at::HostBlock<c10::Stream>;
  static thread_local char* block_being_freed;
  size_t locked_bytes = 0;

  void free(void* context) override {
    if (!context) return;
    block_being_freed = (char*)((HostBlock*)context)->ptr_;
    {
      Lock lock(mutex);
      regions.at(block_being_freed).accesses.drop_finished();
    }
    CachingHostAllocatorImpl::free(context);
  }

  void allocate_host_memory(size_t num_bytes, void** address) override {
    Lock lock(mutex);
    if (locked_bytes + num_bytes > settings.page_locked_limit)
      throw c10::AcceleratorError({__func__, __FILE__, uint32_t(__LINE__)}, 2,
                                  "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in "
                                  "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
                                  "information.\n(Simulated device: the limit of page-locked memory)");
    size_t bytes = (num_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
    auto* pages = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(pages != MAP_FAILED, "the system has no memory to lock");
    locked_bytes += num_bytes;
    regions[pages] = {pages, bytes, {}};
    if (!lowest || pages < lowest) lowest = pages;
    if (pages + bytes > highest) highest = pages + bytes;
    *address = pages;
    std::lock_guard timing(stats_.timing_mutex_);
    stats_.host_alloc_time.increase(0);
  }

  void free_block(HostBlock* block) override {
    Lock lock(mutex);
    auto entry = regions.find((char*)block->ptr_);
    finish_copies_in(entry->second.address, entry->second.bytes);
    munmap(entry->second.address, entry->second.bytes);
    locked_bytes -= block->size_;
    regions.erase(entry);
    std::lock_guard timing(stats_.timing_mutex_);
    stats_.host_free_time.increase(0);
  }

  void record_stream(std::optional<std::vector<CopyEvent>>& events, c10::Stream stream) override {
    int number = stream_number(stream.device_index(), stream.id());
    launch(number);
    events->push_back({clock_of(number), block_being_freed});
  }

  // The allocator learns that the copies are done; the program does not.
  bool query_event(CopyEvent& event) override {
    Lock lock(mutex);
    if (!settings.is_dry && !known_to_any_thread(event.clock) && event.num_polls++ < settings.num_polls) return false;
    auto& region = regions.at(event.block);
    finish_copies_in(region.address, region.bytes);
    region.accesses = {};
    return true;
  }

  c10::Stream get_current_stream() const override { return stream_handle(current_stream(current_device())); }
  bool stream_is_capturing(c10::Stream) const override { return false; }
  bool pinned_use_background_threads() override { return false; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }
};
thread_local char* PageLockedMemory::block_being_freed = nullptr;

static void free_page_locked_pointer(void* context);
using PageLockedAllocator = at::CachingHostAllocatorInterface<PageLockedMemory, &free_page_locked_pointer>;
static PageLockedAllocator& allocator() {
  static auto* instance = new PageLockedAllocator;  // never destroyed: tensors may outlive the module
  return *instance;
}
static void free_page_locked_pointer(void* context) { allocator().free(context); }

c10::Allocator* page_locked_allocator() { return &allocator(); }
void start_page_locked_memory() { at::setHostAllocator(kDeviceType, &allocator(), 255); }

// Not under the mutex: torch's allocator has locks of its own and takes the mutex while it holds them.
void record_page_locked_use(const Tensor& on_host, int stream) {
  auto& pointer = on_host.storage().data_ptr();
  allocator().record_event(pointer.get(), pointer.get_context(), stream_handle(stream));
}

// ---------------------------------------------------------------- statistics
py::dict page_locked_stats() {
  auto stats = allocator().get_stats();
  py::dict all;
  auto put = [&](const char* name, const c10::CachingAllocator::Stat& stat) {
    py::dict entry;
    entry["current"] = stat.current;
    entry["peak"] = stat.peak;
    entry["allocated"] = stat.allocated;
    entry["freed"] = stat.freed;
    all[name] = entry;
  };
  put("allocations", stats.allocations);
  put("allocated_bytes", stats.allocated_bytes);
  put("active_requests", stats.active_requests);
  put("active_bytes", stats.active_bytes);
  auto put_time = [&](const char* name, const c10::CachingAllocator::DurationStat& stat) {
    py::dict entry;
    entry["total"] = stat.total;
    entry["max"] = stat.max;
    entry["min"] = stat.min;
    entry["count"] = stat.count;
    entry["avg"] = stat.count ? stat.total / stat.count : 0;
    all[name] = entry;
  };
  put_time("host_alloc_time", stats.host_alloc_time);
  put_time("host_free_time", stats.host_free_time);
  all["num_host_alloc"] = stats.num_host_alloc;
  all["num_host_free"] = stats.num_host_free;
  return all;
}
void reset_page_locked_stats(bool peak) {
  if (peak) allocator().reset_peak_stats();
  else allocator().reset_accumulated_stats();
}
void free_page_locked_cache() { allocator().empty_cache(); }
}  // namespace simaccel
