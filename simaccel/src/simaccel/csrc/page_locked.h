// Page-locked host memory: torch's caching allocator for it, over simulated calls of the driver.
#pragma once
#include "accesses.h"

namespace simaccel {
struct PageLockedRegion {  // what one call of cudaHostAlloc returned
  char* address;
  size_t bytes;
  AccessLog accesses;      // of copies
};
PageLockedRegion* page_locked_region(const void* address);  // null for other memory; hold the mutex
bool is_page_locked(const void* address);
bool may_be_page_locked(const void* address);               // without the mutex, for a signal handler

c10::Allocator* page_locked_allocator();
void start_page_locked_memory();
void record_page_locked_use(const Tensor& on_host, int stream);  // its block is not reused before the stream got there
py::dict page_locked_stats();
void reset_page_locked_stats(bool peak);
void free_page_locked_cache();
size_t page_bytes();
}  // namespace simaccel
