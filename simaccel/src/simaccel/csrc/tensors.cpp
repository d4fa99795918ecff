#include "tensors.h"

namespace simaccel {
Tensor CpuViews::of(const Tensor& tensor) {
  for (auto& pair : pairs)
    if (pair.first.is_same(tensor)) return pair.second;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  c10::Storage on_cpu;
  for (auto& pair : storages)
    if (pair.first == storage) on_cpu = pair.second;
  if (!on_cpu) {
    on_cpu = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
        c10::DataPtr(kernel_address(storage->data_ptr().get()), c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU), true));
    storages.emplace_back(storage, on_cpu);
  }
  Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(on_cpu), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  impl->_set_conj(tensor.is_conj());
  impl->_set_neg(tensor.is_neg());
  pairs.emplace_back(tensor, view);
  return view;
}
Tensor cpu_view_of(const Tensor& tensor) {
  CpuViews views;
  return views.of(tensor);
}

Tensor view_with_form_of(const Tensor& base, const Tensor& form) {
  Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), form.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(form.sizes(), form.strides(), form.storage_offset());
  impl->_set_conj(form.is_conj());
  impl->_set_neg(form.is_neg());
  return view;
}

Tensor new_tensor(IntArrayRef sizes, IntArrayRef strides, at::ScalarType dtype, int device) {
  CurrentDevice on(device);
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator, c10::DispatchKeySet(kDispatchKey), dtype);
}

Tensor empty(IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  CurrentDevice on(device ? index_of(*device) : current_device());
  return at::detail::empty_generic(sizes, &device_allocator, c10::DispatchKeySet(kDispatchKey),
                                   dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}
Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  return new_tensor(sizes, strides, dtype.value_or(at::get_default_dtype_as_scalartype()), device ? index_of(*device) : current_device());
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  if (bytes == storage->nbytes()) return;
  CurrentDevice on(storage->device().index());
  auto memory = device_allocator.allocate(bytes);
  size_t kept_bytes = std::min(bytes, storage->nbytes());
  auto* old_block = (Block*)storage->data_ptr().get_context();
  bool has_known_numbers = settings.is_dry && (!old_block || old_block->has_known_numbers) && bytes <= storage->nbytes();
  if (kept_bytes && (!settings.is_dry || has_known_numbers))
    std::memcpy(kernel_address(memory.get()), kernel_address(storage->data_ptr().get()), kept_bytes);
  if (auto* block = (Block*)memory.get_context()) block->has_known_numbers = has_known_numbers;
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(bytes);
}
void make_room(const Tensor& tensor) {
  size_t bytes = bytes_needed(tensor);
  if (tensor.storage().nbytes() < bytes) resize_storage(tensor.storage().unsafeGetStorageImpl(), bytes);
}
const Tensor& resize_(const Tensor& tensor, IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  if (tensor.sizes() != sizes) tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (format) tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  make_room(tensor);
  return tensor;
}
Tensor& set_storage_offset(Tensor& tensor, at::Storage storage, int64_t offset, IntArrayRef sizes, IntArrayRef strides) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (strides.data() == nullptr || strides.size() != sizes.size()) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  make_room(tensor);
  return tensor;
}
Tensor& set_storage(Tensor& tensor, at::Storage storage) {
  int64_t items = storage.nbytes() / tensor.element_size();
  return set_storage_offset(tensor, std::move(storage), 0, {items}, {});
}
Tensor& set_tensor(Tensor& tensor, const Tensor& source) {
  return set_storage_offset(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
Tensor& set_nothing(Tensor& tensor) {
  CurrentDevice on(tensor.device().index());
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0, device_allocator.allocate(0),
                                                             &device_allocator, true));
  return set_storage_offset(tensor, storage, 0, {0}, {});
}
void record_stream(Tensor& tensor, at::Stream stream) { device_allocator.recordStream(tensor.storage().data_ptr(), stream); }
}  // namespace simaccel
