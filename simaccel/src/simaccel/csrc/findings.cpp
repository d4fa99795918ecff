#include "findings.h"

#include "host_copies.h"

namespace simaccel {
static std::vector<std::string>& all_findings = *new std::vector<std::string>;
static std::string& pending = *new std::string;
constexpr int kMostFrames = 40;

Stack current_stack() {
  if (!settings.keeps_stacks || !Py_IsInitialized()) return nullptr;
  return torch::CapturedTraceback::gather(true, false, false);
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
