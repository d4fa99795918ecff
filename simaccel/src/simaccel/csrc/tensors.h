// Tensors of a device over the memory that kernels use.
#pragma once
#include "device_memory.h"

namespace simaccel {
// CPU tensors over the memory of tensors on a device: for the kernels. Tensors that share a storage share it there, too.
class CpuViews {
 public:
  Tensor of(const Tensor&);
  std::vector<std::pair<Tensor, Tensor>> pairs;                       // on the device, on the CPU
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> storages;
};
Tensor cpu_view_of(const Tensor&);

Tensor view_with_form_of(const Tensor& base, const Tensor& form);     // a view of `base` as `form` views its storage
Tensor new_tensor(IntArrayRef sizes, IntArrayRef strides, at::ScalarType, int device);
void resize_storage(c10::StorageImpl*, size_t bytes);
void make_room(const Tensor&);                                        // for its sizes and strides

// Operators that allocate or exchange storages.
Tensor empty(IntArrayRef, std::optional<at::ScalarType>, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
             std::optional<at::MemoryFormat>);
Tensor empty_strided(IntArrayRef, IntArrayRef, std::optional<at::ScalarType>, std::optional<at::Layout>, std::optional<at::Device>,
                     std::optional<bool>);
const Tensor& resize_(const Tensor&, IntArrayRef, std::optional<at::MemoryFormat>);
Tensor& set_storage_offset(Tensor&, at::Storage, int64_t offset, IntArrayRef, IntArrayRef);
Tensor& set_storage(Tensor&, at::Storage);
Tensor& set_tensor(Tensor&, const Tensor&);
Tensor& set_nothing(Tensor&);
void record_stream(Tensor&, at::Stream);

// Copies and reads of numbers.
bool have_same_form(const Tensor&, const Tensor&);
char* host_address(const Tensor&);
Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking);
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking);
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to);
at::Scalar local_scalar_dense(const Tensor&);
}  // namespace simaccel
