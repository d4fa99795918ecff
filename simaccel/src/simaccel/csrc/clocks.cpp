#include "clocks.h"

#include "host_copies.h"

namespace simaccel {
struct Stream {
  int device;
  int64_t id;
  Clock clock;
  int num_polls = 0;
};
static std::vector<Stream>& streams = *new std::vector<Stream>;
static std::map<std::pair<int, int64_t>, int>& stream_numbers = *new std::map<std::pair<int, int64_t>, int>;
constexpr int64_t kFirstHiddenStream = 1000;

void merge(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); i++) clock[i] = std::max(clock[i], other[i]);
}
uint64_t count_at(const Clock& clock, int stream) { return size_t(stream) < clock.size() ? clock[stream] : 0; }
bool covers(const Clock& clock, const Clock& other) {
  for (size_t i = 0; i < other.size(); i++)
    if (count_at(clock, int(i)) < other[i]) return false;
  return true;
}

// ---------------------------------------------------------------- streams
int stream_number(int device, int64_t id) {
  Lock lock(mutex);
  auto [entry, is_new] = stream_numbers.try_emplace({device, id}, int(streams.size()));
  if (is_new) streams.push_back({device, id, {}, 0});
  return entry->second;
}

c10::Stream stream_handle(int stream) {
  Lock lock(mutex);
  auto& s = streams.at(stream);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, c10::DeviceIndex(s.device)), s.id);
}

int64_t& current_stream_id(int device) {
  static thread_local std::vector<int64_t> ids;
  if (ids.size() <= size_t(device)) ids.resize(device + 1, 0);
  return ids[device];
}
int current_stream(int device) { return stream_number(device, current_stream_id(device)); }

int new_stream(int device) {
  static int64_t next = kFirstHiddenStream;
  Lock lock(mutex);
  return stream_number(device, next++);
}

uint64_t launch(int stream) {
  Lock lock(mutex);
  auto& s = streams[stream];
  merge(s.clock, thread_clock());
  if (s.clock.size() <= size_t(stream)) s.clock.resize(stream + 1);
  s.num_polls = 0;
  return ++s.clock[stream];
}

void stream_waits(int stream, const Clock& clock) {
  Lock lock(mutex);
  merge(streams[stream].clock, clock);
}

Clock clock_of(int stream) {
  Lock lock(mutex);
  merge(streams[stream].clock, thread_clock());
  return streams[stream].clock;
}

Clock clock_of_device(int device) {
  Lock lock(mutex);
  Clock all;
  for (auto& s : streams)
    if (s.device == device) merge(all, s.clock);
  return all;
}

std::string describe_stream(int stream) {
  Lock lock(mutex);
  return "stream " + std::to_string(streams[stream].id) + " of device " + std::to_string(streams[stream].device);
}

bool poll_stream(int stream) {
  Lock lock(mutex);
  auto& s = streams[stream];
  if (!known_to_any_thread(s.clock) && s.num_polls++ < settings.num_polls) return false;
  host_learns(s.clock);
  return true;
}

// ---------------------------------------------------------------- host threads
// A thread that Python did not start (autograd's, torch's pools) is ordered by locks that cannot be seen here: it knows
// what any thread knows.
struct HostThread {
  Clock clock;
  bool is_pythons = false, follows_all = true;
  HostThread();
  ~HostThread();
};
static std::set<HostThread*> threads;  // those that used a device
static Clock& known_to_any = *new Clock;

HostThread::HostThread() {
  Lock lock(mutex);
  threads.insert(this);
}
HostThread::~HostThread() {
  Lock lock(mutex);
  threads.erase(this);
}
static HostThread& this_thread() {
  static thread_local HostThread thread;
  return thread;
}

const Clock& thread_clock() {
  auto& thread = this_thread();
  if (thread.follows_all || !settings.follows_threads) merge(thread.clock, known_to_any);
  return thread.clock;
}

bool known_to_any_thread(const Clock& clock) { return covers(known_to_any, clock); }
bool known_to_any_thread(int stream, uint64_t count) { return count_at(known_to_any, stream) >= count; }
bool known_to_all_threads(int stream, uint64_t count) {
  if (!known_to_any_thread(stream, count)) return false;
  return !settings.follows_threads || std::all_of(threads.begin(), threads.end(), [&](HostThread* thread) {
    return thread->follows_all || count_at(thread->clock, stream) >= count;
  });
}

void host_learns(const Clock& clock) {
  Lock lock(mutex);
  merge(this_thread().clock, clock);
  merge(known_to_any, clock);
  deliver_finished_copies();
}

void learn_from_all_threads() {
  Lock lock(mutex);
  merge(this_thread().clock, known_to_any);
}

void follow_all_threads() {
  Lock lock(mutex);
  this_thread().follows_all = true;
}

void begin_thread(const Clock& clock) {
  Lock lock(mutex);
  auto& thread = this_thread();
  thread.clock = clock;
  thread.is_pythons = true;
  thread.follows_all = false;
}

Clock knowledge_of_thread() {
  Lock lock(mutex);
  return thread_clock();
}

void learn(const Clock& clock) {
  Lock lock(mutex);
  auto& thread = this_thread();
  merge(thread.clock, clock);
  if (thread.follows_all && thread.is_pythons) {
    merge(thread.clock, known_to_any);
    thread.follows_all = false;
  }
}

// ---------------------------------------------------------------- waits of the host
static std::deque<Wait>& all_waits = *new std::deque<Wait>;
static size_t wait_count = 0;
constexpr size_t kMostWaits = 20000;

void note_wait(const char* reason, bool torch_checks) {
  if (torch_checks && settings.sync_debug_mode) {  // the texts of c10/cuda/CUDAFunctions.cpp
    TORCH_CHECK(settings.sync_debug_mode != 2, "called a synchronizing CUDA operation");
    TORCH_WARN("called a synchronizing CUDA operation");
  }
  if (settings.is_dry) return count_wait();
  auto stack = current_stack();
  Lock lock(mutex);
  wait_count++;
  all_waits.push_back({reason, stack});
  if (all_waits.size() > kMostWaits) all_waits.pop_front();
}

void host_waits(const Clock& clock, const char* reason, bool torch_checks) {
  note_wait(reason, torch_checks);
  host_learns(clock);
}
void host_waits_for_stream(int stream, const char* reason, bool torch_checks) {
  host_waits(clock_of(stream), reason, torch_checks);
}

std::vector<Wait> waits(bool clear) {
  Lock lock(mutex);
  std::vector<Wait> copy(all_waits.begin(), all_waits.end());
  if (clear) all_waits.clear();
  return copy;
}
size_t num_waits() { return wait_count; }
void count_wait() {
  Lock lock(mutex);
  wait_count++;
}
}  // namespace simaccel
