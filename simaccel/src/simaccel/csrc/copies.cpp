// Copies between devices and the host.
#include "host_copies.h"
#include "page_locked.h"
#include "tensors.h"

namespace simaccel {
bool have_same_form(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}
char* host_address(const Tensor& tensor) {
  return (char*)tensor.storage().data_ptr().get() + tensor.storage_offset() * tensor.element_size();
}

// Bytes of the same form, as cudaMemcpyAsync copies them.
static void copy_bytes(const Tensor& to, const Tensor& from, bool non_blocking) {
  auto stack = current_stack();
  bool is_to_host = !on_device(to);
  const Tensor &there = is_to_host ? from : to, &here = is_to_host ? to : from;
  char* address = host_address(here);
  bool locked = is_page_locked(address);
  int stream = current_stream(there.device().index());
  if (!locked && non_blocking)
    host_waits_for_stream(stream, is_to_host ? "non_blocking copy to memory that is not page-locked"
                                             : "non_blocking copy from memory that is not page-locked", false);
  uint64_t count = launch(stream);
  record_access(there, !is_to_host, stream, count, is_to_host ? "copy to the host" : "copy from the host", stack);
  HostCopy copy{address, kernel_address(host_address(there)), to.numel() * to.element_size(), is_to_host, stream, count, stack};
  if (locked && non_blocking) {
    record_page_locked_use(here, stream);
    return start_copy(copy);
  }
  run_copy(copy);
  if (!non_blocking) host_waits_for_stream(stream, is_to_host ? "blocking copy to the host" : "blocking copy from the host");
}

static void copy_on_devices(const Tensor& to, const Tensor& from) {
  auto stack = current_stack();
  int source = current_stream(from.device().index()), target = current_stream(to.device().index());
  if (source != target) stream_waits(source, clock_of(target));
  uint64_t count = launch(source);
  record_access(from, false, source, count, "copy_", stack);
  record_access(to, true, source, count, "copy_", stack);
  cpu_view_of(to).copy_(cpu_view_of(from));
  if (source != target) stream_waits(target, clock_of(source));
}

Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  raise_pending_finding();
  if (to.is_same(from) || to.numel() == 0) return to;
  at::AutoDispatchBelowADInplaceOrView below;
  if (on_device(to) && on_device(from)) {
    copy_on_devices(to, from);
    return to;
  }
  Tensor source = from.sizes() == to.sizes() ? from : from.expand(to.sizes());
  if (have_same_form(to, source)) {
    copy_bytes(to, source, non_blocking);
    return to;
  }
  // Numbers are converted before they travel if the device can do it without a wait, otherwise after.
  bool converts_first = on_device(from) == non_blocking;
  Tensor target = to;
  if (converts_first) {
    if (!to.is_contiguous()) target = at::empty_like(to, {}, at::MemoryFormat::Contiguous);
    source = from.to(to.scalar_type()).expand(to.sizes()).contiguous();
    if (source.is_conj() || source.is_neg()) source = source.resolve_conj().resolve_neg();
  } else {
    if (!to.is_contiguous() || to.scalar_type() != from.scalar_type())
      target = at::empty_like(to, to.options().dtype(from.scalar_type()), at::MemoryFormat::Contiguous);
    source = source.contiguous();
  }
  copy_bytes(target, source, non_blocking);
  if (!target.is_same(to)) to.copy_(target, non_blocking);
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
  raise_pending_finding();
  int stream = current_stream(tensor.device().index());
  record_access(tensor, false, stream, launch(stream), "item", current_stack());
  host_waits_for_stream(stream, "item: a number is read from the device");
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_ops::_local_scalar_dense::call(cpu_view_of(tensor));
}
}  // namespace simaccel
