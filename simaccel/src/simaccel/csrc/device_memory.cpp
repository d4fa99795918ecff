#include "device_memory.h"

namespace simaccel {
DeviceAllocator& device_allocator = *new DeviceAllocator;

constexpr size_t kMiB = 1 << 20;
constexpr size_t kRounding = 512, kLargestSmall = kMiB, kSmallSegment = 2 * kMiB, kLargeSegment = 20 * kMiB,
                 kSmallestOwnSegment = 10 * kMiB, kSegmentRounding = 2 * kMiB;

// ---------------------------------------------------------------- addresses
constexpr size_t kBytesOfAddresses = size_t(1) << 38;  // for each device
static char *device_base = nullptr, *kernel_base = nullptr;

void map_device_memory() {
  size_t bytes = kBytesOfAddresses * settings.num_cards;
  device_base = (char*)mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  // Shared, so that a limit on the process's own data (RLIMIT_DATA) does not count it.
  kernel_base = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(device_base != MAP_FAILED && kernel_base != MAP_FAILED, "no address space for simulated devices");
}
// A copy of this process would write to the same pages.
void renew_device_memory() {
  void* pages = mmap(kernel_base, kBytesOfAddresses * settings.num_cards, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  TORCH_CHECK(pages == kernel_base, "no address space for simulated devices");
}
char* kernel_address(const void* address) { return address ? (char*)address + (kernel_base - device_base) : nullptr; }
bool is_device_address(const void* address) {
  return device_base && address >= device_base && address < device_base + kBytesOfAddresses * settings.num_cards;
}
int device_of_address(const void* address) { return int(((char*)address - device_base) / kBytesOfAddresses); }

Block* block_of(const Tensor& tensor) {
  return tensor.has_storage() ? (Block*)tensor.storage().data_ptr().get_context() : nullptr;
}

std::pair<size_t, size_t> byte_range(const Tensor& tensor) {
  size_t item = tensor.element_size();
  size_t begin = (char*)tensor.storage().data_ptr().get() - device_base + tensor.storage_offset() * item, end = begin + item;
  for (int64_t d = 0; d < tensor.dim(); d++) end += (tensor.size(d) - 1) * tensor.stride(d) * item;
  return {begin, end};
}

size_t bytes_needed(const Tensor& tensor) {
  if (!tensor.numel()) return 0;
  size_t items = tensor.storage_offset() + 1;
  for (int64_t d = 0; d < tensor.dim(); d++) items += (tensor.size(d) - 1) * tensor.stride(d);
  return items * tensor.element_size();
}

// ---------------------------------------------------------------- statistics
static void add(c10::CachingAllocator::StatArray& stats, bool is_small, int64_t amount) {
  for (int pool : {0, is_small ? 1 : 2}) {
    if (amount >= 0) stats[pool].increase(amount);
    else stats[pool].decrease(-amount);
  }
}
static void for_all(DeviceStats& s, const std::function<void(c10::CachingAllocator::Stat&)>& apply) {
  for (auto* array : {&s.allocation, &s.segment, &s.active, &s.allocated_bytes, &s.reserved_bytes, &s.active_bytes, &s.requested_bytes})
    for (auto& stat : *array) apply(stat);
}
DeviceStats DeviceAllocator::getDeviceStats(c10::DeviceIndex device) {
  Lock lock(mutex);
  return devices_.at(device).stats;
}
void DeviceAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  Lock lock(mutex);
  for_all(devices_.at(device).stats, [](auto& stat) { stat.reset_accumulated(); });
}
void DeviceAllocator::resetPeakStats(c10::DeviceIndex device) {
  Lock lock(mutex);
  for_all(devices_.at(device).stats, [](auto& stat) { stat.reset_peak(); });
}
std::pair<size_t, size_t> DeviceAllocator::getMemoryInfo(c10::DeviceIndex device) {
  Lock lock(mutex);
  size_t reserved = devices_.at(device).stats.reserved_bytes[0].current;
  size_t limit = std::min(settings.memory_limits.at(device), settings.total_bytes);
  return {limit > reserved ? limit - reserved : 0, settings.total_bytes};
}
std::pair<size_t, size_t> DeviceAllocator::inactive_split(int device) {
  Lock lock(mutex);
  size_t number = 0, bytes = 0;
  for (auto* pool : {&devices_.at(device).small, &devices_.at(device).large})
    for (auto* block : *pool)
      if (block->previous || block->next) number++, bytes += block->bytes;
  return {number, bytes};
}

// ---------------------------------------------------------------- allocation
static void free_device_pointer(void* context) { device_allocator.free_block((Block*)context); }
static void free_no_pointer(void*) {}

void DeviceAllocator::start() { devices_.resize(settings.num_cards); }

c10::DataPtr DeviceAllocator::allocate(size_t num_bytes) {
  int device = current_device();
  c10::Device place(kDeviceType, c10::DeviceIndex(device));
  if (num_bytes == 0) return {nullptr, nullptr, &free_no_pointer, place};
  Block* block = allocate_block(device, num_bytes, current_stream(device));
  if (settings.poisons_memory) std::memset(kernel_address(block->address), 0xFF, num_bytes);
  return {block->address, block, &free_device_pointer, place};
}

void DeviceAllocator::copy_data(void* to, const void* from, size_t num_bytes) const {
  std::memcpy(kernel_address(to), kernel_address(from), num_bytes);
}

Block* DeviceAllocator::allocate_block(int device, size_t num_bytes, int stream) {
  Stack stack = recorded_peak_bytes ? current_stack() : nullptr;
  Lock lock(mutex);
  auto& memory = devices_.at(device);
  if (settings.allocations_until_failure && --settings.allocations_until_failure == 0)
    out_of_memory(memory, device, num_bytes, "; this allocation was chosen to fail");
  size_t bytes = std::max(kRounding, (num_bytes + kRounding - 1) / kRounding * kRounding);
  bool is_small = bytes <= kLargestSmall;
  free_held_back(memory, false);
  Block* block = cached_block(memory, bytes, is_small, stream);
  if (!block) block = new_segment(memory, device, bytes, is_small, stream);
  if (!block) {
    memory.stats.num_alloc_retries++;
    free_held_back(memory, true);
    release_segments(memory);
    block = cached_block(memory, bytes, is_small, stream);
    if (!block) block = new_segment(memory, device, bytes, is_small, stream);
  }
  if (!block) out_of_memory(memory, device, num_bytes, "");
  size_t rest = block->bytes - bytes;
  if (is_small ? rest >= kRounding : rest > kLargestSmall) split(memory, block, bytes);
  block->has_known_numbers = false;
  block->assumed_number = -1;
  block->is_allocated = true;
  block->requested_bytes = num_bytes;
  block->allocation = ++num_allocations_;
  auto& stats = memory.stats;
  add(stats.allocation, is_small, 1);
  add(stats.active, is_small, 1);
  add(stats.allocated_bytes, is_small, block->bytes);
  add(stats.active_bytes, is_small, block->bytes);
  add(stats.requested_bytes, is_small, num_bytes);
  if (recorded_peak_bytes) {
    block->stack = stack;
    record_peak(block, memory);
  }
  return block;
}

Block* DeviceAllocator::cached_block(Device& memory, size_t bytes, bool is_small, int stream) {
  auto& pool = is_small ? memory.small : memory.large;
  Block key{0, stream, nullptr, bytes};
  auto entry = pool.lower_bound(&key);
  if (entry == pool.end() || (*entry)->stream != stream) return nullptr;
  Block* block = *entry;
  pool.erase(entry);
  return block;
}

Block* DeviceAllocator::new_segment(Device& memory, int device, size_t bytes, bool is_small, int stream) {
  size_t segment = is_small ? kSmallSegment
                   : bytes < kSmallestOwnSegment ? kLargeSegment
                                                 : (bytes + kSegmentRounding - 1) / kSegmentRounding * kSegmentRounding;
  size_t limit = std::min(settings.memory_limits.at(device), settings.total_bytes);
  if (memory.stats.reserved_bytes[0].current + segment > limit) return nullptr;
  size_t offset = memory.end;
  auto hole = std::find_if(memory.holes.begin(), memory.holes.end(), [&](auto& entry) { return entry.second >= segment; });
  if (hole != memory.holes.end()) {
    offset = hole->first;
    if (hole->second > segment) memory.holes[offset + segment] = hole->second - segment;
    memory.holes.erase(hole);
  } else {
    memory.end += segment;
  }
  auto* block = new Block{device, stream, device_base + kBytesOfAddresses * device + offset, segment};
  block->is_small = is_small;
  add(memory.stats.segment, is_small, 1);
  add(memory.stats.reserved_bytes, is_small, segment);
  memory.stats.num_device_alloc++;
  return block;
}

void DeviceAllocator::split(Device& memory, Block* block, size_t bytes) {
  auto* rest = new Block{block->device, block->stream, block->address + bytes, block->bytes - bytes};
  rest->is_small = block->is_small;
  rest->previous = block;
  rest->next = block->next;
  if (block->next) block->next->previous = rest;
  block->next = rest;
  block->bytes = bytes;
  rest->accesses = block->accesses.split(rest->address - device_base);
  (rest->is_small ? memory.small : memory.large).insert(rest);
}

static std::string in_words(double bytes) {
  bool is_large = bytes >= 1024 * kMiB;
  char text[64];
  std::snprintf(text, sizeof text, is_large ? "%.2f GiB" : "%.2f MiB", bytes / (is_large ? 1024 * kMiB : kMiB));
  return text;
}

void DeviceAllocator::out_of_memory(Device& memory, int device, size_t num_bytes, const char* reason) {
  auto& stats = memory.stats;
  stats.num_ooms++;
  size_t allocated = stats.allocated_bytes[0].current, reserved = stats.reserved_bytes[0].current;
  size_t limit = std::min(settings.memory_limits.at(device), settings.total_bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", in_words(num_bytes), ". GPU ", device,
                   " has a total capacity of ", in_words(settings.total_bytes), " of which ",
                   in_words(limit > reserved ? limit - reserved : 0), " is free. Of the allocated memory ", in_words(allocated),
                   " is allocated by PyTorch, and ", in_words(reserved - allocated),
                   " is reserved by PyTorch but unallocated. (Simulated device", reason, ")");
}

void DeviceAllocator::record_peak(Block* block, const Device& memory) {
  live_.insert(block);
  if (size_t(memory.stats.allocated_bytes[0].current) < recorded_peak_bytes) return;
  for (Block* live : live_) recorded_peak.emplace_back(live->bytes, live->stack);
  recorded_peak_bytes = 0;
}

// ---------------------------------------------------------------- freeing
void DeviceAllocator::free_block(Block* block) {
  Lock lock(mutex);
  auto& memory = devices_[block->device];
  add(memory.stats.allocation, block->is_small, -1);
  add(memory.stats.allocated_bytes, block->is_small, -int64_t(block->bytes));
  add(memory.stats.requested_bytes, block->is_small, -int64_t(block->requested_bytes));
  live_.erase(block);
  block->stack = nullptr;
  if (block->recorded_streams.empty()) return cache(memory, block);
  for (int stream : block->recorded_streams) {
    if (block->reusable_after.size() <= size_t(stream)) block->reusable_after.resize(stream + 1);
    block->reusable_after[stream] = count_at(clock_of(stream), stream);
  }
  block->recorded_streams.clear();
  memory.held_back.push_back(block);
}

void DeviceAllocator::free_held_back(Device& memory, bool waits) {
  auto blocks = std::move(memory.held_back);
  memory.held_back.clear();
  for (Block* block : blocks) {
    if (waits) host_learns(block->reusable_after);
    if (!settings.is_dry && !known_to_any_thread(block->reusable_after)) {
      memory.held_back.push_back(block);
      continue;
    }
    block->reusable_after.clear();
    cache(memory, block);
  }
}

void DeviceAllocator::cache(Device& memory, Block* block) {
  add(memory.stats.active, block->is_small, -1);
  add(memory.stats.active_bytes, block->is_small, -int64_t(block->bytes));
  block->is_allocated = false;
  block->accesses.drop_finished();
  auto is_mergeable = [](Block* neighbour) { return neighbour && !neighbour->is_allocated && neighbour->reusable_after.empty(); };
  if (is_mergeable(block->previous)) merge_with(memory, block, block->previous);
  if (is_mergeable(block->next)) merge_with(memory, block, block->next);
  (block->is_small ? memory.small : memory.large).insert(block);
}

void DeviceAllocator::merge_with(Device& memory, Block* block, Block* neighbour) {
  (neighbour->is_small ? memory.small : memory.large).erase(neighbour);
  block->accesses.absorb(neighbour->accesses);
  block->bytes += neighbour->bytes;
  if (neighbour == block->previous) {
    block->address = neighbour->address;
    block->previous = neighbour->previous;
    if (block->previous) block->previous->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next) block->next->previous = block;
  }
  delete neighbour;
}

void DeviceAllocator::release_segments(Device& memory) {
  for (auto* pool : {&memory.small, &memory.large}) {
    for (auto entry = pool->begin(); entry != pool->end();) {
      Block* block = *entry;
      if (block->previous || block->next) {
        ++entry;
        continue;
      }
      entry = pool->erase(entry);
      // In dry mode nobody wrote to a large block.
      if (!settings.is_dry || block->is_small) madvise(kernel_address(block->address), block->bytes, MADV_REMOVE);
      memory.holes[size_t(block->address - device_base) - kBytesOfAddresses * block->device] = block->bytes;
      add(memory.stats.segment, block->is_small, -1);
      add(memory.stats.reserved_bytes, block->is_small, -int64_t(block->bytes));
      memory.stats.num_device_free++;
      delete block;
    }
  }
}

void DeviceAllocator::emptyCache(c10::MempoolId_t) {
  Lock lock(mutex);
  for (auto& memory : devices_) {
    free_held_back(memory, true);
    release_segments(memory);
  }
}

void DeviceAllocator::recordStream(const c10::DataPtr& pointer, c10::Stream stream) {
  Lock lock(mutex);
  auto* block = (Block*)pointer.get_context();
  if (!block) return;
  int number = stream_number(stream.device_index(), stream.id());
  if (number != block->stream) block->recorded_streams.insert(number);
}
}  // namespace simaccel
