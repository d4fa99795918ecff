// What happens before what. Streams are numbered over all devices; each has a counter of what was launched on it. A
// clock has one entry for each stream: everything up to that count comes before. Streams have clocks, and so do host
// threads: a thread knows that work is done if it waited for it, or if it is ordered after a thread that did.
#pragma once
#include "findings.h"

namespace simaccel {
using Clock = std::vector<uint64_t>;
void merge(Clock& clock, const Clock& other);
uint64_t count_at(const Clock&, int stream);
bool covers(const Clock&, const Clock& other);

// Streams.
int stream_number(int device, int64_t id);
c10::Stream stream_handle(int stream);
int current_stream(int device);
int64_t& current_stream_id(int device);
int new_stream(int device);                   // for communication; no program can choose it
uint64_t launch(int stream);                  // a kernel is launched by this thread; returns its count
void stream_waits(int stream, const Clock&);  // cudaStreamWaitEvent
Clock clock_of(int stream);
Clock clock_of_device(int device);
std::string describe_stream(int stream);
bool poll_stream(int stream);                 // cudaStreamQuery

// Host threads.
const Clock& thread_clock();                    // what this thread knows to be done; hold the mutex while using it
bool known_to_any_thread(const Clock&);         // done, as far as the program can tell
bool known_to_any_thread(int stream, uint64_t count);
bool known_to_all_threads(int stream, uint64_t count);  // every thread that uses devices
void host_learns(const Clock&);                 // this thread waited
void follow_all_threads();                      // this thread may know what any thread knows, until it is ordered again
void learn_from_all_threads();
void begin_thread(const Clock&);                // a Python thread that knows what its creator knew
Clock knowledge_of_thread();
void learn(const Clock&);                       // this thread is ordered after one that knew it

// Waits of the host, with their stacks.
struct Wait {
  std::string reason;
  Stack stack;
};
// `torch_checks`: torch.cuda.set_sync_debug_mode warns of this wait or refuses it.
void host_waits(const Clock&, const char* reason, bool torch_checks = true);
void host_waits_for_stream(int stream, const char* reason, bool torch_checks = true);
void note_wait(const char* reason, bool torch_checks);
std::vector<Wait> waits(bool clear);
size_t num_waits();
void count_wait();  // without a stack
}  // namespace simaccel
