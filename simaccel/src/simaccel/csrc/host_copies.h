// Asynchronous copies between a device and page-locked memory. Until something the host waited for covers a copy, the
// host may not use its memory: memory that a copy writes has other contents (0xFF) and no access, memory that a copy
// reads is read-only. Breaking this faults, and the handler of the fault notes both stacks.
#pragma once
#include "clocks.h"

namespace simaccel {
struct HostCopy {
  char* host_address;
  char* device_address;  // a kernel's
  size_t bytes;
  bool is_to_host;
  int stream;
  uint64_t count;
  Stack stack;
};
void start_copy(const HostCopy&);  // asynchronous
void run_copy(const HostCopy&);    // done when this returns
void deliver_finished_copies();    // those that a host thread waited for
void finish_copies_in(char* address, size_t bytes);
size_t num_copies_in_flight();

void install_fault_handler();
bool has_faults();                 // faults that are not yet findings
void describe_faults();            // makes findings of them
}  // namespace simaccel
