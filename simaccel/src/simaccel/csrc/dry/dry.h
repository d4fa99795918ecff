// Dry mode: nothing is computed and large device memory has no pages. What an operator returns is asked of its meta kernel,
// once for each form of its arguments. Storages of a few KiB whose numbers are known (they come from host data, seeds or
// constants) are computed, so that schedules, indices and masks keep their values. Other numbers are assumed: a loss is
// finite, a mask chooses everything. Each assumption is counted with its stack.
#pragma once
#include "../kernels.h"

namespace simaccel::dry {
// The boxed kernel of all operators.
void run(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);

Tensor empty(IntArrayRef, std::optional<at::ScalarType>, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
             std::optional<at::MemoryFormat>);
Tensor empty_strided(IntArrayRef, IntArrayRef, std::optional<at::ScalarType>, std::optional<at::Layout>, std::optional<at::Device>,
                     std::optional<bool>);
Tensor view(const Tensor&, IntArrayRef);
Tensor as_strided(const Tensor&, IntArrayRef, IntArrayRef, std::optional<int64_t>);
Tensor reshape_alias(const Tensor&, IntArrayRef, IntArrayRef);
Tensor& copy_(Tensor&, const Tensor&, bool);
Tensor copy_from(const Tensor&, const Tensor&, bool);
Tensor copy_from_and_resize(const Tensor&, const Tensor&);
at::Scalar local_scalar_dense(const Tensor&);
Tensor& copy_on_host(Tensor&, const Tensor&, bool);  // of the CPU: memory without pages stays without

// Known and assumed numbers.
bool is_known(const Tensor&);
bool is_little(const Tensor&);
bool fills_storage(const Tensor&);
void set_known(const Tensor&, bool is_known, int assumed = -1);
int assumed_number(const Tensor&);  // -1: none
void note_assumption(const std::string&);
std::map<std::string, uint64_t> assumptions();

// Counters and clocks of the mode itself.
struct Counters {
  std::atomic<uint64_t> inside_ns{0}, meta_ns{0}, computing_ns{0}, num_operators{0}, num_views{0}, num_new_forms{0}, num_computed{0},
      num_items{0}, bytes_to_device{0}, bytes_to_host{0}, num_hole_copies{0}, hole_bytes{0};
};
extern Counters counters;
class Inside {  // host time in dry kernels, which is not the program's
 public:
  Inside();
  ~Inside();
 private:
  std::chrono::steady_clock::time_point begin_;
  bool is_outermost_;
};

const char* short_name(c10::ScalarType);
std::string form_of(const Tensor&);
void clear_pages(char* address, size_t bytes, size_t smallest = size_t(8) << 20);  // zeros, without pages where it is large
std::map<std::string, uint64_t> copy_forms();
}  // namespace simaccel::dry
