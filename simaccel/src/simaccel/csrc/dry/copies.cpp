// Copies, allocations and views of dry mode.
#include "../page_locked.h"
#include "dry.h"

namespace simaccel::dry {
static std::map<std::string, uint64_t>& forms = *new std::map<std::string, uint64_t>;

std::map<std::string, uint64_t> copy_forms() {
  Lock lock(mutex);
  return forms;
}
static void count_copy(const char* kind, const Tensor& from, const Tensor& to, bool non_blocking) {
  Lock lock(mutex);
  forms[std::string(kind) + form_of(from) + " -> " + form_of(to) + (non_blocking ? " non_blocking" : "")]++;
}

void clear_pages(char* address, size_t bytes, size_t smallest) {
  if (bytes < smallest || bytes < 2 * page_bytes()) {
    std::memset(address, 0, bytes);
    return;
  }
  char* begin = (char*)(((uintptr_t)address + page_bytes() - 1) / page_bytes() * page_bytes());
  char* end = (char*)(((uintptr_t)address + bytes) / page_bytes() * page_bytes());
  std::memset(address, 0, begin - address);
  madvise(begin, end - begin, MADV_DONTNEED);  // private memory without pages reads as zeros
  std::memset(end, 0, address + bytes - end);
}

// The tensor that the copy would allocate on the way, to have its memory counted.
static Tensor temporary_of_copy(const Tensor& to, const Tensor& from, const Tensor& source, bool non_blocking) {
  if (have_same_form(to, source)) return {};
  bool converts_first = on_device(from) == non_blocking;
  auto dtype = converts_first ? to.scalar_type() : from.scalar_type();
  if (on_device(to)) {
    bool fits = to.is_contiguous() && (converts_first || to.scalar_type() == from.scalar_type());
    return fits ? Tensor() : at::empty_like(to, to.options().dtype(dtype), at::MemoryFormat::Contiguous);
  }
  bool fits = source.is_contiguous() && dtype == from.scalar_type();
  return fits ? Tensor() : at::empty(source.sizes(), from.options().dtype(dtype));
}

static void copy_between_devices(Tensor& to, const Tensor& from) {
  bool fills = fills_storage(to);
  if (is_known(from) && is_little(from) && is_little(to) && (fills || is_known(to))) {
    cpu_view_of(to).copy_(cpu_view_of(from));
    set_known(to, true);
    counters.num_computed++;
  } else {
    set_known(to, false, fills ? assumed_number(from) : -1);
  }
  count_copy("device ", from, to, false);
}

static void copy_to_device(Tensor& to, const Tensor& from) {
  counters.bytes_to_device += to.numel() * to.element_size();
  bool becomes_known = is_little(to) && (fills_storage(to) || is_known(to));
  if (becomes_known) cpu_view_of(to).copy_(from);
  set_known(to, becomes_known);
}

static void copy_to_host(Tensor& to, const Tensor& from) {
  size_t bytes = to.numel() * to.element_size();
  counters.bytes_to_host += bytes;
  if (is_known(from) && is_little(from)) to.copy_(cpu_view_of(from));
  else if (assumed_number(from) >= 0) to.fill_(int64_t(assumed_number(from)));
  else if (to.is_non_overlapping_and_dense()) clear_pages(host_address(to), bytes);
  else to.zero_();
}

Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  Inside inside;
  if (to.is_same(from) || to.numel() == 0) return to;
  counters.num_operators++;
  at::AutoDispatchBelowADInplaceOrView below;
  int device = (on_device(to) ? to : from).device().index();
  launch(current_stream(device));
  CurrentDevice on(device);
  if (on_device(to) && on_device(from)) {
    copy_between_devices(to, from);
    return to;
  }
  Tensor source = from.sizes() == to.sizes() ? from : from.expand(to.sizes());
  Tensor temporary = temporary_of_copy(to, from, source, non_blocking);
  if (!non_blocking) count_wait();
  if (on_device(to)) copy_to_device(to, from);
  else copy_to_host(to, from);
  count_copy(on_device(to) ? "to device " : "to host ", from, to, non_blocking);
  return to;
}
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  copy_(target, from, non_blocking);
  return to;
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& tensor) {
  Inside inside;
  count_wait();
  counters.num_items++;
  at::AutoDispatchBelowADInplaceOrView below;
  if (is_known(tensor) && is_little(tensor)) return at::_ops::_local_scalar_dense::call(cpu_view_of(tensor));
  int assumed = assumed_number(tensor);
  note_assumption(std::string("item of ") + short_name(tensor.scalar_type()) + (assumed >= 0 ? " (follows)" : ""));
  if (tensor.scalar_type() == at::kBool) return at::Scalar(assumed >= 0 ? assumed != 0 : settings.dry_bool);
  int64_t number = std::max(assumed, 0);
  return at::isFloatingType(tensor.scalar_type()) ? at::Scalar(double(number)) : at::Scalar(number);
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory) {
  Inside inside;
  return simaccel::empty_strided(sizes, strides, dtype, layout, device, pin_memory);
}
Tensor empty(IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout, std::optional<at::Device> device,
             std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  Inside inside;
  return simaccel::empty(sizes, dtype, layout, device, pin_memory, format);
}
Tensor view(const Tensor& tensor, IntArrayRef sizes) {
  counters.num_views++;
  return at::native::view(tensor, sizes);
}
Tensor as_strided(const Tensor& tensor, IntArrayRef sizes, IntArrayRef strides, std::optional<int64_t> offset) {
  counters.num_views++;
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}
Tensor reshape_alias(const Tensor& tensor, IntArrayRef sizes, IntArrayRef strides) {
  counters.num_views++;
  return at::native::_reshape_alias(tensor, sizes, strides);
}
}  // namespace simaccel::dry
