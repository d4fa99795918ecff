#include "findings.h"

#include "host_copies.h"

namespace simaccel {
static std::vector<std::string>& all_findings = *new std::vector<std::string>;
static std::string& pending = *new std::string;
constexpr int kMostFrames = 40;

// No thread may ask for the GIL while Python ends (`host_threads.cpp`), and autograd's may still free tensors then. So
// those that are reading their stack are waited for, and no other begins to.
static std::atomic<int> num_reading{0};
static std::atomic<bool> python_ends{false};

Stack current_stack() {
  if (!settings.keeps_stacks) return nullptr;
  struct Reading {
    Reading() { num_reading++; }
    ~Reading() { num_reading--; }
  } reading;
  if (python_ends || !Py_IsInitialized()) return nullptr;
  return torch::CapturedTraceback::gather(true, false, false);
}

void end_stacks() {
  python_ends = true;
  py::gil_scoped_release others_may_finish;
  // In a copied process, threads that were reading are counted and not there.
  auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (num_reading && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
}

std::string to_text(const Stack& stack) {
  if (!stack) return "    (no stack)\n";
  auto symbols = torch::symbolize({stack.get()});
  std::string text;
  int num_frames = 0;
  for (auto index : symbols.tracebacks.at(0)) {
    auto& frame = symbols.all_frames[index];
    text += "    " + frame.filename + ":" + std::to_string(frame.lineno) + " " + frame.funcname + "\n";
    if (++num_frames > kMostFrames) break;
  }
  return text.empty() ? "    (a thread without Python frames, e.g. autograd's)\n" : text;
}

void report(const std::string& finding) {
  {
    Lock lock(mutex);
    all_findings.push_back(finding);
  }
  TORCH_CHECK(settings.only_logs, finding);
}

void add_finding_of_fault(std::string finding) {
  Lock lock(mutex);
  if (pending.empty() && !settings.only_logs) pending = finding;
  all_findings.push_back(std::move(finding));
}

void raise_pending_finding() {
  if (has_faults()) describe_faults();
  if (pending.empty()) return;
  std::string finding;
  {
    Lock lock(mutex);
    std::swap(finding, pending);
  }
  TORCH_CHECK(finding.empty(), finding);
}

std::vector<std::string> findings(bool clear) {
  if (has_faults()) describe_faults();
  Lock lock(mutex);
  auto copy = all_findings;
  if (clear) {
    all_findings.clear();
    pending.clear();
  }
  return copy;
}
}  // namespace simaccel
