// Memory of the devices and its caching allocator, which follows torch's (c10/cuda/CUDACachingAllocator.cpp): sizes in
// units of 512 bytes, segments of 2 and 20 MiB or multiples of 2 MiB, best fit on one stream, split and merge.
//
// Tensors hold addresses of a range that nobody can access; kernels use the same memory at a fixed distance. Host code
// that dereferences an address of a device faults, as on a GPU.
#pragma once
#include "accesses.h"

namespace simaccel {
void map_device_memory();
void renew_device_memory();
char* kernel_address(const void* device_address);
bool is_device_address(const void*);
int device_of_address(const void*);

struct Block {
  int device, stream;
  char* address;
  size_t bytes, requested_bytes = 0;
  bool is_small, is_allocated = false;
  bool has_known_numbers = false;   // dry mode
  int8_t assumed_number = -1;       // dry mode: what all numbers are taken for; -1 for none
  Block *previous = nullptr, *next = nullptr;  // neighbours in a segment
  uint64_t allocation = 0;
  AccessLog accesses;
  Stack stack;                      // where it was allocated; kept for `record_peak` only
  std::set<int> recorded_streams;   // record_stream
  Clock reusable_after;             // work on the recorded streams
};
Block* block_of(const Tensor&);
std::pair<size_t, size_t> byte_range(const Tensor&);  // first byte and end, from the start of all device memory
size_t bytes_needed(const Tensor&);                   // of a storage, by sizes and strides

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  void start();  // memory for every card
  c10::DataPtr allocate(size_t) override;
  void copy_data(void* to, const void* from, size_t) const override;
  bool initialized() override { return !devices_.empty(); }
  void emptyCache(c10::MempoolId_t = {0, 0}) override;
  void recordStream(const c10::DataPtr&, c10::Stream) override;
  DeviceStats getDeviceStats(c10::DeviceIndex) override;
  void resetAccumulatedStats(c10::DeviceIndex) override;
  void resetPeakStats(c10::DeviceIndex) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override;
  std::pair<size_t, size_t> inactive_split(int device);  // number and bytes of free parts of segments in use

  void free_block(Block*);

  // Keeps the stacks of all blocks that are allocated when a device first uses this many bytes.
  size_t recorded_peak_bytes = 0;
  std::vector<std::pair<size_t, Stack>> recorded_peak;

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return std::tie(a->stream, a->bytes, a->address) < std::tie(b->stream, b->bytes, b->address);
    }
  };
  using Pool = std::set<Block*, BySize>;
  struct Device {
    Pool small, large;                // free blocks
    std::vector<Block*> held_back;    // freed, but used by recorded streams
    std::map<size_t, size_t> holes;   // offset and bytes of released segments
    size_t end = 0;                   // of the last segment
    DeviceStats stats;
  };

  Block* allocate_block(int device, size_t num_bytes, int stream);
  Block* cached_block(Device&, size_t bytes, bool is_small, int stream);
  Block* new_segment(Device&, int device, size_t bytes, bool is_small, int stream);
  void split(Device&, Block*, size_t bytes);
  void cache(Device&, Block*);
  void merge_with(Device&, Block* block, Block* neighbour);
  void free_held_back(Device&, bool waits);
  void release_segments(Device&);
  void record_peak(Block*, const Device&);
  [[noreturn]] void out_of_memory(Device&, int device, size_t num_bytes, const char* reason);

  std::vector<Device> devices_;
  std::set<Block*> live_;             // while recorded_peak_bytes is set
  uint64_t num_allocations_ = 0;
};
extern DeviceAllocator& device_allocator;  // never destroyed: memory is freed until the very end of a process
}  // namespace simaccel
