// Findings: breaches of a GPU's rules, with the stacks of both sides. A finding raises where it is made, unless it is
// made in a signal handler; then the next call that reaches the device raises it.
#pragma once
#include "settings.h"

namespace simaccel {
using Stack = std::shared_ptr<torch::CapturedTraceback>;

Stack current_stack();                 // the Python stack of this thread; null where stacks are not kept
std::string to_text(const Stack&);     // its frames, innermost first
void end_stacks();                     // with the GIL: from now on no stack is kept

void report(const std::string& finding);
void add_finding_of_fault(std::string finding);
void raise_pending_finding();
std::vector<std::string> findings(bool clear);
}  // namespace simaccel
