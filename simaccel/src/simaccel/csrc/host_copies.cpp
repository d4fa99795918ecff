#include "host_copies.h"

#include "device_memory.h"
#include "page_locked.h"

extern "C" const char* _Py_DumpTraceback(int fd, PyThreadState* tstate);

namespace simaccel {
struct CopyInFlight : HostCopy {
  std::vector<char> data;  // to the host: what the memory holds when the copy is done
  bool is_reported = false;
  bool overlaps(const char* address, size_t num_bytes) const {
    return host_address < address + num_bytes && address < host_address + bytes;
  }
};
static std::deque<CopyInFlight>& copies = *new std::deque<CopyInFlight>;

// ---------------------------------------------------------------- protection of pages
static std::pair<char*, size_t> pages_of(char* address, size_t bytes) {
  uintptr_t page = page_bytes(), begin = (uintptr_t)address / page * page, end = ((uintptr_t)address + bytes + page - 1) / page * page;
  return {(char*)begin, end - begin};
}
static void protect(char* address, size_t bytes, int protection) {
  auto [begin, length] = pages_of(address, bytes);
  mprotect(begin, length, protection);
}
// Protects the copies that share pages with this memory.
static void protect_copies_at(char* address, size_t bytes) {
  if (!settings.protects_pages) return;
  auto [begin, length] = pages_of(address, bytes);
  for (bool is_to_host : {false, true})  // where both share a page, the stricter protection comes last
    for (auto& copy : copies)
      if (copy.is_to_host == is_to_host && !copy.is_reported && copy.overlaps(begin, length))
        protect(copy.host_address, copy.bytes, is_to_host ? PROT_NONE : PROT_READ);
}
static void finish(CopyInFlight& copy) {
  if (settings.protects_pages) protect(copy.host_address, copy.bytes, PROT_READ | PROT_WRITE);
  if (copy.is_to_host) std::memcpy(copy.host_address, copy.data.data(), copy.bytes);
}
static void finish_copies(const std::function<bool(const CopyInFlight&)>& is_done) {
  std::vector<std::pair<char*, size_t>> finished;
  for (auto copy = copies.begin(); copy != copies.end();) {
    if (is_done(*copy)) {
      finish(*copy);
      finished.emplace_back(copy->host_address, copy->bytes);
      copy = copies.erase(copy);
    } else {
      ++copy;
    }
  }
  if (copies.empty()) return;
  for (auto& [address, bytes] : finished) protect_copies_at(address, bytes);
}

void deliver_finished_copies() {
  if (copies.empty()) return;
  finish_copies([](auto& copy) { return known_to_any_thread(copy.stream, copy.count); });
}
void finish_copies_in(char* address, size_t bytes) {
  finish_copies([&](auto& copy) { return copy.overlaps(address, bytes); });
}
size_t num_copies_in_flight() {
  Lock lock(mutex);
  return copies.size();
}

// ---------------------------------------------------------------- copies
// Copies that used the memory before this one must be ordered before it. They are done, then, when this one starts.
static void order_after_earlier_copies(const HostCopy& copy) {
  std::optional<Access> conflict;
  size_t begin = (size_t)copy.host_address;
  Access access{begin, begin + copy.bytes, copy.is_to_host, copy.stream, copy.count, 0,
                copy.is_to_host ? "a copy to the host" : "a copy from the host", copy.stack};
  {
    Lock lock(mutex);
    if (auto* region = page_locked_region(copy.host_address)) conflict = region->accesses.add(access);
  }
  if (conflict) report_race("page-locked memory", access, *conflict);
  Lock lock(mutex);
  if (copy.is_to_host) return finish_copies_in(copy.host_address, copy.bytes);
  // This copy reads what earlier ones write; the host may still not.
  for (auto& earlier : copies) {
    if (!earlier.is_to_host || !earlier.overlaps(copy.host_address, copy.bytes)) continue;
    if (settings.protects_pages) protect(earlier.host_address, earlier.bytes, PROT_READ | PROT_WRITE);
    std::memcpy(earlier.host_address, earlier.data.data(), earlier.bytes);
  }
}

void start_copy(const HostCopy& copy) {
  order_after_earlier_copies(copy);
  Lock lock(mutex);
  copies.push_back({copy});
  if (copy.is_to_host) {
    copies.back().data.assign(copy.device_address, copy.device_address + copy.bytes);
    std::memset(copy.host_address, 0xFF, copy.bytes);
  } else {
    std::memcpy(copy.device_address, copy.host_address, copy.bytes);
  }
  protect_copies_at(copy.host_address, copy.bytes);
}

void run_copy(const HostCopy& copy) {
  order_after_earlier_copies(copy);
  if (copy.is_to_host) std::memcpy(copy.host_address, copy.device_address, copy.bytes);
  else std::memcpy(copy.device_address, copy.host_address, copy.bytes);
  Lock lock(mutex);
  protect_copies_at(copy.host_address, copy.bytes);
}

// ---------------------------------------------------------------- faults
// A fault is described later: a handler of signals can neither take the GIL nor allocate much.
struct Fault {
  bool is_to_host;
  Stack copy_stack;
  char host_stack[1 << 14];
};
constexpr int kMostFaults = 16;
static Fault faults[kMostFaults];
static std::atomic<int> num_faults{0};
static struct sigaction previous_action;

static void note_fault(const CopyInFlight& copy) {
  int number = num_faults;
  if (number == kMostFaults) return;
  auto& fault = faults[number];
  fault.is_to_host = copy.is_to_host;
  fault.copy_stack = copy.stack;
  int file = memfd_create("simaccel", 0);
  if (auto* thread = PyGILState_GetThisThreadState()) _Py_DumpTraceback(file, thread);
  lseek(file, 0, SEEK_SET);
  ssize_t length = read(file, fault.host_stack, sizeof fault.host_stack - 1);
  fault.host_stack[length > 0 ? length : 0] = 0;
  close(file);
  num_faults = number + 1;
}

// Returns whether the access may be tried again.
static bool handle_page_locked(char* address) {
  Lock lock(mutex);
  for (auto& copy : copies) {
    auto [begin, length] = pages_of(copy.host_address, copy.bytes);
    if (address < begin || address >= begin + length) continue;
    protect(copy.host_address, copy.bytes, PROT_READ | PROT_WRITE);
    if (copy.overlaps(address, 1) && !copy.is_reported) {
      copy.is_reported = true;
      note_fault(copy);
    }
    return true;
  }
  if (!page_locked_region(address)) return false;
  protect(address, 1, PROT_READ | PROT_WRITE);
  return true;
}

static void on_fault(int signal, siginfo_t* info, void* context) {
  auto* address = (char*)info->si_addr;
  if (is_device_address(address)) {
    const char text[] = "\nsimaccel: host code dereferences an address of device memory\n";
    (void)!write(2, text, sizeof text - 1);
    if (auto* thread = PyGILState_GetThisThreadState()) _Py_DumpTraceback(2, thread);
  } else if (may_be_page_locked(address) && handle_page_locked(address)) {
    return;
  }
  // Python's handler raises the signal again for the one before it, which may be this one.
  static bool is_passed_on = false;
  if (is_passed_on) previous_action = {};
  is_passed_on = true;
  if (previous_action.sa_flags & SA_SIGINFO && previous_action.sa_sigaction)
    return previous_action.sa_sigaction(signal, info, context);
  sigaction(signal, &previous_action, nullptr);
}

// Called again after another handler was installed, which takes every fault for a crash: this one comes first.
void install_fault_handler() {
  struct sigaction action {}, before {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &before);
  if (before.sa_sigaction != on_fault) previous_action = before;
}

bool has_faults() { return num_faults; }

void describe_faults() {
  std::vector<std::tuple<bool, Stack, std::string>> copied;
  {
    Lock lock(mutex);
    for (int i = 0; i < num_faults; i++) copied.emplace_back(faults[i].is_to_host, std::move(faults[i].copy_stack), faults[i].host_stack);
    num_faults = 0;
  }
  for (auto& [is_to_host, copy_stack, host_stack] : copied)
    add_finding_of_fault(std::string("the host ") + (is_to_host ? "reads or writes" : "writes") +
                         " page-locked memory while a copy " + (is_to_host ? "to" : "from") + " it is in flight. The host:\n" +
                         host_stack + "  the copy was started at\n" + to_text(copy_stack));
}
}  // namespace simaccel
