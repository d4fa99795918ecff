// Known and assumed numbers, and the counters.
#include "dry.h"

namespace simaccel::dry {
Counters counters;
static std::map<std::string, uint64_t>& all_assumptions = *new std::map<std::string, uint64_t>;
static thread_local int depth = 0;

Inside::Inside() : is_outermost_(depth++ == 0) {
  if (is_outermost_) begin_ = std::chrono::steady_clock::now();
}
Inside::~Inside() {
  depth--;
  if (is_outermost_) counters.inside_ns += (std::chrono::steady_clock::now() - begin_).count();
}

bool is_known(const Tensor& tensor) {
  auto* block = block_of(tensor);
  return !block || block->has_known_numbers;
}
bool is_little(const Tensor& tensor) { return tensor.has_storage() && tensor.storage().nbytes() <= settings.dry_known_bytes; }
bool fills_storage(const Tensor& tensor) {
  return tensor.has_storage() && size_t(tensor.numel()) * tensor.element_size() == tensor.storage().nbytes() &&
         tensor.is_non_overlapping_and_dense();
}
void set_known(const Tensor& tensor, bool is_known, int assumed) {
  if (auto* block = block_of(tensor)) {
    block->has_known_numbers = is_known;
    block->assumed_number = int8_t(assumed);
  }
}
int assumed_number(const Tensor& tensor) {
  auto* block = block_of(tensor);
  return block ? block->assumed_number : -1;
}

void note_assumption(const std::string& assumption) {
  std::string text = assumption;
  if (settings.dry_stacks) text += "\n" + to_text(torch::CapturedTraceback::gather(true, false, false));
  Lock lock(mutex);
  all_assumptions[text]++;
}
std::map<std::string, uint64_t> assumptions() {
  Lock lock(mutex);
  return all_assumptions;
}
}  // namespace simaccel::dry
