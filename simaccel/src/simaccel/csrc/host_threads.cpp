// Functions of Python that order threads are made to pass on what the threads know: the pointers to their C functions
// are replaced by functions that call them. So every lock is seen, whoever made it and whatever name it goes by:
// conditions, events, semaphores, queues and futures are built on these.
//
//   lock.release, queue.put     the object gets to know what the thread knows
//   lock.acquire, queue.get     the thread gets to know what the object knows
//   time.sleep, select          what ends this wait cannot be seen: until the thread is ordered by an object again, it
//                               may know what any thread knows
//   backward                    autograd's threads follow all threads; their caller knows what they know
//
// Threads that hand on data through Python objects alone (an attribute, a list, a deque) are ordered by the GIL, which
// is not seen; `simaccel.threads_are_ordered()` says so.
#include "host_threads.h"

#include "clocks.h"

namespace simaccel {
enum class Order { kReleases, kAcquires, kWaits, kRunsThreads };

static std::unordered_map<const void*, Clock>& known_to_object = *new std::unordered_map<const void*, Clock>;

static void release(const void* object) {
  Lock lock(mutex);
  auto& clock = thread_clock();
  if (!clock.empty()) merge(known_to_object[object], clock);
}
static void acquire(const void* object) {
  static const Clock nothing;
  Lock lock(mutex);
  auto entry = known_to_object.find(object);
  learn(entry == known_to_object.end() ? nothing : entry->second);
}

// All C functions of Python are called with up to four words, of which each reads those that it has.
using Function = PyObject* (*)(PyObject*, void*, void*, void*);
struct Followed {
  Function function;
  Order order;
};
constexpr size_t kMostFollowed = 40;
static Followed followed[kMostFollowed];
static size_t num_followed = 0;

// A thread that takes the GIL while Python ends is ended by it, and with it the process, because its frames of C++ allow
// no exception. Autograd's threads take it twice: when they begin, which is at the first backward pass, one for each
// device, and when they free the last graph task.
constexpr int kMostDevices = 8;
static std::atomic<int> num_autograd_threads{0};
static std::array<std::atomic<bool>, kMostDevices> has_started{};

void note_thread_of_device(int device) {
  static thread_local bool is_noted = false;
  if (is_noted || device < 0 || device >= kMostDevices) return;
  is_noted = true;
  if (gettid() != getpid()) has_started[device] = true;
}

static void wait_for_start_of_autograd_threads() {
  auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (int device = 0; device < num_autograd_threads; device++)
    while (!has_started[device] && std::chrono::steady_clock::now() < latest)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A thread of autograd frees the last graph task after the caller of `backward` goes on. The task holds an object of
// Python, the caller's context, so that freeing it takes the GIL. One more backward pass, which holds none, makes the
// thread of each device free the task before it.
static void replace_last_graph_tasks() {
  for (int device = 0; device < num_autograd_threads; device++) {
    try {
      auto weight = at::zeros({}, at::TensorOptions().device(kDeviceType, c10::DeviceIndex(device))).requires_grad_();
      torch::autograd::backward({weight.clone()});
    } catch (const c10::Error&) {
      // A device that is full or has failed computes nothing: its last task may still end the process, as on a GPU.
    }
  }
}

void let_autograd_threads_finish() {
  py::gil_scoped_release they_may_take_it;
  wait_for_start_of_autograd_threads();
  replace_last_graph_tasks();
}

template <size_t number>
static PyObject* call(PyObject* self, void* a, void* b, void* c) {
  auto& [function, order] = followed[number];
  if (order == Order::kReleases) release(self);
  if (order == Order::kRunsThreads && !num_autograd_threads) num_autograd_threads = std::min(settings.num_devices, kMostDevices);
  PyObject* result = function(self, a, b, c);
  if (order == Order::kAcquires && result && result != Py_False) acquire(self);
  if (order == Order::kWaits) follow_all_threads();
  if (order == Order::kRunsThreads) learn_from_all_threads();
  return result;
}
template <size_t... numbers>
static constexpr std::array<Function, sizeof...(numbers)> calls_of(std::index_sequence<numbers...>) {
  return {&call<numbers>...};
}

static void follow(py::handle owner, const char* name, Order order) {
  static constexpr auto calls = calls_of(std::make_index_sequence<kMostFollowed>());
  if (!py::hasattr(owner, name)) return;
  py::object attribute = owner.attr(name);
  PyMethodDef* definition = nullptr;
  if (PyObject_TypeCheck(attribute.ptr(), &PyMethodDescr_Type)) definition = ((PyMethodDescrObject*)attribute.ptr())->d_method;
  else if (PyCFunction_Check(attribute.ptr())) definition = ((PyCFunctionObject*)attribute.ptr())->m_ml;
  TORCH_CHECK(definition && num_followed < kMostFollowed, "simaccel cannot follow ", name, " in this version of Python");
  followed[num_followed] = {(Function)(void*)definition->ml_meth, order};
  definition->ml_meth = (PyCFunction)(void*)calls[num_followed++];
}

void follow_python_threads() {
  if (num_followed) return;
  // A copied process has no threads but its own.
  pthread_atfork(nullptr, nullptr, [] { num_autograd_threads = 0; });
  auto module = [](const char* name) { return py::module_::import(name); };
  for (auto type : {py::type::of(module("_thread").attr("allocate_lock")()), py::type::of(module("_thread").attr("RLock")())}) {
    for (auto* name : {"release", "release_lock", "__exit__", "_release_save"}) follow(type, name, Order::kReleases);
    for (auto* name : {"acquire", "acquire_lock", "__enter__", "_acquire_restore"}) follow(type, name, Order::kAcquires);
  }
  py::object queue = module("_queue").attr("SimpleQueue");
  for (auto* name : {"put", "put_nowait"}) follow(queue, name, Order::kReleases);
  for (auto* name : {"get", "get_nowait"}) follow(queue, name, Order::kAcquires);
  follow(module("time"), "sleep", Order::kWaits);
  follow(module("select"), "select", Order::kWaits);
  for (auto* type : {"poll", "epoll"})
    if (py::hasattr(module("select"), type)) {
      auto poll = module("select").attr(type)();
      follow(py::type::of(poll), "poll", Order::kWaits);
    }
  py::object engine = module("torch.autograd.variable").attr("Variable").attr("_execution_engine");
  follow(py::type::of(engine), "run_backward", Order::kRunsThreads);
}
}  // namespace simaccel
