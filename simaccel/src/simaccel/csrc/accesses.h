// The accesses of one block of memory that later ones must be ordered after.
#pragma once
#include "clocks.h"

namespace simaccel {
struct Access {
  size_t begin, end;      // bytes, in any fixed coordinate
  bool writes;
  int stream;
  uint64_t count;         // of the stream, when it was launched
  uint64_t allocation;    // of the block; another one later if the memory was freed in between
  std::string operation;
  Stack stack;
};

class AccessLog {
 public:
  // Returns an earlier access that nothing orders before this one, if there is any, and keeps this one.
  std::optional<Access> add(Access);
  // When memory is freed: work that is done cannot overlap with its next use.
  void drop_finished();
  void absorb(const AccessLog&);
  AccessLog split(size_t at);  // keeps what is below

 private:
  std::vector<Access> accesses_;
};

// Raises if `now` is not ordered after `before`; both touched `what`.
void report_race(const char* what, const Access& now, const Access& before);

// A kernel reads or writes a tensor on a device.
void record_access(const Tensor&, bool writes, int stream, uint64_t count, const char* operation, const Stack&);
}  // namespace simaccel
