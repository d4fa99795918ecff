// Operators: the CPU's kernels on the same memory, for the operators that have a kernel on MPS.
#include "mps.h"
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/library.h>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>

namespace simaccel_mps {
using at::IntArrayRef;
using at::Tensor;

Tensor Aliases::of(const Tensor& t) {
  for (auto& pair : pairs) if (pair.first.is_same(t)) return pair.second;
  auto* storage = t.storage().unsafeGetStorageImpl();
  c10::Storage there;
  for (auto& pair : storages) if (pair.first == storage) there = pair.second;
  if (!there) {
    there = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
        c10::DataPtr(storage->mutable_data(), c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU), true));
    storages.emplace_back(storage, there);
  }
  Tensor alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(there), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  impl->_set_conj(t.is_conj());
  impl->_set_neg(t.is_neg());
  pairs.emplace_back(t, alias);
  return alias;
}
Tensor alias_of(const Tensor& t) {
  Aliases aliases;
  return on_mps(t) ? aliases.of(t) : t;
}
static std::optional<Tensor> alias_of(const std::optional<Tensor>& t) {
  return t && t->defined() ? std::optional<Tensor>(alias_of(*t)) : std::nullopt;
}

static Tensor view_on(const Tensor& base, const Tensor& shape) {
  Tensor t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), shape.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
  t.unsafeGetTensorImpl()->_set_conj(shape.is_conj());
  t.unsafeGetTensorImpl()->_set_neg(shape.is_neg());
  return t;
}

static at::ScalarType allowed(std::optional<at::ScalarType> dtype) {
  auto type = dtype.value_or(at::get_default_dtype_as_scalartype());
  TORCH_CHECK_TYPE(type != at::kDouble, "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use float32 instead.");
  TORCH_CHECK_TYPE(type != at::kComplexDouble, "Trying to convert ComplexDouble to the MPS backend but it does not have support for that dtype.");
  TORCH_CHECK_TYPE(!c10::isFloat8Type(type), "Trying to convert ", type, " to the MPS backend but it does not have support for that dtype.");
  return type;
}
static Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                            std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, allocator(), c10::DispatchKeySet(kKey), allowed(dtype));
}
static Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
                    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, allocator(), c10::DispatchKeySet(kKey), allowed(dtype), format);
}
Tensor on_device(const Tensor& computed) {
  if (!computed.defined() || !computed.has_storage()) return computed;
  Tensor t = empty_strided(computed.sizes(), computed.strides(), computed.scalar_type(), {}, {}, {});
  size_t bytes = computed.numel() ? computed.element_size() : 0;
  for (int64_t d = 0; bytes && d < computed.dim(); d++) bytes += (computed.size(d) - 1) * computed.stride(d) * computed.element_size();
  if (bytes) std::memcpy(t.mutable_data_ptr(), computed.const_data_ptr(), bytes);
  t.unsafeGetTensorImpl()->_set_conj(computed.is_conj());
  t.unsafeGetTensorImpl()->_set_neg(computed.is_neg());
  return t;
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  if (bytes == storage->nbytes()) return;
  auto fresh = allocator()->allocate(bytes);
  if (size_t kept = std::min(bytes, storage->nbytes())) std::memcpy(fresh.get(), storage->data(), kept);
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(bytes);
}
static void make_room(const Tensor& t) {
  if (!t.numel()) return;
  size_t need = (t.storage_offset() + 1) * t.element_size();
  for (int64_t d = 0; d < t.dim(); d++) need += (t.size(d) - 1) * t.stride(d) * t.element_size();
  if (t.storage().nbytes() < need) resize_storage(t.storage().unsafeGetStorageImpl(), need);
}
static const Tensor& resize_(const Tensor& t, IntArrayRef size, std::optional<at::MemoryFormat> format) {
  if (t.sizes() != size) t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) t.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  make_room(t);
  return t;
}
static Tensor& set_storage_offset(Tensor& t, at::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.data() == nullptr || stride.size() != size.size()) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  make_room(t);
  return t;
}
static Tensor& set_storage(Tensor& t, at::Storage storage) {
  int64_t num = storage.nbytes() / t.element_size();
  return set_storage_offset(t, std::move(storage), 0, {num}, {});
}
static Tensor& set_tensor(Tensor& t, const Tensor& source) {
  return set_storage_offset(t, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
static Tensor& set_nothing(Tensor& t) {
  c10::Storage none(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), true));
  return set_storage_offset(t, none, 0, {0}, {});
}
static at::Scalar local_scalar_dense(const Tensor& t) {
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_ops::_local_scalar_dense::call(alias_of(t));
}

// ---------------------------------------------------------------- copies
static std::mutex mu;
static std::vector<std::shared_ptr<torch::CapturedTraceback>> unsafe;

static std::vector<std::string> unsafe_copies(bool clear) {
  std::vector<std::shared_ptr<torch::CapturedTraceback>> taken;
  {
    std::lock_guard lock(mu);
    taken = unsafe;
    if (clear) unsafe.clear();
  }
  std::vector<std::string> texts;
  for (auto& one : taken) {
    auto symbols = torch::symbolize({one.get()});
    std::string text;
    for (auto number : symbols.tracebacks.at(0)) {
      auto& frame = symbols.all_frames.at(number);
      text += frame.filename + ":" + std::to_string(frame.lineno) + " " + frame.funcname + "\n";
    }
    texts.push_back(text);
  }
  return texts;
}

static Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.is_same(from) || to.numel() == 0) return to;
  if (non_blocking && from.device().is_cpu() && on_mps(to)) {
    std::lock_guard lock(mu);
    unsafe.push_back(torch::CapturedTraceback::gather(true, false, false));
  }
  at::AutoDispatchBelowADInplaceOrView below;
  alias_of(to).copy_(alias_of(from));
  return to;
}
static Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor t = to;
  return copy_(t, from, non_blocking);
}
static Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// ---------------------------------------------------------------- operators that only MPS has
static Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  at::AutoDispatchBelowADInplaceOrView below;
  return on_device(at::linear(alias_of(x), alias_of(weight), alias_of(bias)));
}
static std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& x, const Tensor& gradient, const Tensor& weight, std::array<bool, 3> wanted) {
  at::AutoDispatchBelowADInplaceOrView below;
  Tensor input = alias_of(x), out = alias_of(gradient);
  Tensor flat_in = input.reshape({-1, input.size(-1)}), flat_out = out.reshape({-1, out.size(-1)});
  Tensor of_input, of_weight, of_bias;
  if (wanted[0]) of_input = on_device(at::matmul(out, alias_of(weight)));
  if (wanted[1]) of_weight = on_device(at::mm(flat_out.t(), flat_in));
  if (wanted[2]) of_bias = on_device(flat_out.sum(0));
  return {of_input, of_weight, of_bias};
}
// torch calls these where it was built without MPS, and there the kernels of MPS.
static Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride, IntArrayRef padding,
                          IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  at::AutoDispatchBelowADInplaceOrView below;
  return on_device(at::convolution(alias_of(x), alias_of(weight), alias_of(bias), stride, padding, dilation, transposed, output_padding, groups));
}
static std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& x, const Tensor& weight, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  at::AutoDispatchBelowADInplaceOrView below;
  std::vector<int64_t> bias{weight.size(transposed ? 1 : 0) * (transposed ? groups : 1)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(alias_of(gradient), alias_of(x), alias_of(weight), IntArrayRef(bias), stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  return {on_device(of_input), on_device(of_weight), on_device(of_bias)};
}
static std::tuple<Tensor, Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
    double dropout, bool causal, const std::optional<Tensor>& dropout_mask, std::optional<double> scale, bool gqa) {
  at::AutoDispatchBelowADInplaceOrView below;
  auto [out, weights] = at::_scaled_dot_product_attention_math(
      alias_of(query), alias_of(key), alias_of(value), alias_of(mask), dropout, causal, alias_of(dropout_mask), scale, gqa);
  return {on_device(out), on_device(weights)};
}
// As torch chooses it on MPS, which has no stub for the choice.
static Tensor chosen_attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& given_mask, double dropout,
                               bool causal, std::optional<double> scale, bool gqa) {
  std::optional<Tensor> mask = given_mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool)
    mask = at::zeros_like(*mask, query.options()).masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
  bool trains = at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  bool contiguous = query.is_contiguous() && key.is_contiguous() && value.is_contiguous();
  if (!trains && contiguous && dropout == 0)
    return std::get<0>(at::_scaled_dot_product_attention_math_for_mps(query, key, value, mask, dropout, causal, std::nullopt, scale, gqa));
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, std::nullopt, scale, gqa));
}
static std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, IntArrayRef shape, const std::optional<Tensor>& weight, std::optional<double> eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  auto [out, scale] = at::_fused_rms_norm(alias_of(x), shape, alias_of(weight), eps);
  return {on_device(out), on_device(scale)};
}

// torch's fused norm has no backward pass on MPS and is left out where one is needed.
static Tensor chosen_rms_norm(const Tensor& x, IntArrayRef shape, const std::optional<Tensor>& weight, std::optional<double> eps) {
  bool has_weight = weight && weight->defined();
  bool trains = at::GradMode::is_enabled() && (x.requires_grad() || (has_weight && weight->requires_grad()));
  if (has_weight && !trains && weight->scalar_type() == x.scalar_type()) return std::get<0>(at::_fused_rms_norm(x, shape, weight, eps));
  std::vector<int64_t> dims;
  for (size_t d = 1; d <= shape.size(); d++) dims.push_back(-int64_t(d));
  Tensor wide = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
  Tensor out = wide * at::rsqrt(at::pow(wide, 2).mean(dims, true).add_(eps.value_or(std::numeric_limits<float>::epsilon())));
  return (has_weight ? out * *weight : out).type_as(x);
}

// ---------------------------------------------------------------- every other operator
static void on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const std::string& name = op.operator_name().name;
  bool mixes = name.find("index") != std::string::npos;
  size_t base = stack->size() - arguments.size();
  Aliases aliases;
  bool plain = false, on_device_too = false;
  auto take = [&](const Tensor& t) -> Tensor {
    if (!on_mps(t)) {
      plain |= t.defined() && t.dim() && t.device().is_cpu();
      return t;
    }
    on_device_too = true;
    return aliases.of(t);
  };
  for (size_t i = 0; i < arguments.size(); i++) {
    auto& v = (*stack)[base + i];
    if (v.isTensor()) {
      if (v.toTensor().defined()) v = take(v.toTensor());
    } else if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : v.toTensorVector()) list.push_back(take(t));
      v = std::move(list);
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (std::optional<Tensor> t : v.toOptionalTensorVector()) list.push_back(t && t->defined() ? std::optional<Tensor>(take(*t)) : t);
      v = std::move(list);
    } else if (v.isDevice()) {
      if (v.toDevice().type() == kMps) v = c10::Device(c10::kCPU);
    } else if (v.isGenerator()) {
      v = cpu_generator(v.toGenerator());
    } else if (v.isNone() && arguments[i].name() == "generator") {
      v = cpu_generator(default_generator());
    }
  }
  TORCH_CHECK(!(plain && on_device_too) || mixes, "Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu, in ", name);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  // What an out= variant made larger.
  for (auto& [storage, there] : aliases.storages) {
    if (there.data() == storage->data()) continue;
    resize_storage(storage, there.nbytes());
    if (there.nbytes()) std::memcpy(storage->mutable_data(), there.data(), there.nbytes());
  }
  for (auto& [t, alias] : aliases.pairs)
    if (alias.sizes() != t.sizes() || alias.strides() != t.strides())
      t.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  auto result = [&](const Tensor& computed) -> Tensor {
    if (!computed.defined()) return computed;
    for (auto& [t, alias] : aliases.pairs) if (alias.is_same(computed)) return t;
    for (auto& [t, alias] : aliases.pairs)
      if (computed.has_storage() && computed.storage().is_alias_of(alias.storage())) return view_on(t, computed);
    return on_device(computed);
  };
  size_t outs = schema.returns().size(), first = stack->size() - outs;
  for (size_t i = 0; i < outs; i++) {
    auto& v = (*stack)[first + i];
    if (v.isTensor()) {
      v = result(v.toTensor());
    } else if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : v.toTensorVector()) list.push_back(result(t));
      v = std::move(list);
    }
  }
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("linear", TORCH_FN(linear));
  m.impl("linear_backward", TORCH_FN(linear_backward));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("_scaled_dot_product_attention_math_for_mps", TORCH_FN(attention));
  m.impl("_fused_rms_norm", TORCH_FN(rms_norm));
  m.impl("rms_norm", TORCH_FN(chosen_rms_norm));
  m.impl("scaled_dot_product_attention", TORCH_FN(chosen_attention));
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(chosen_attention));
  m.impl("rms_norm", TORCH_FN(chosen_rms_norm));
}

// What Python calls.
static int64_t register_kernels(std::vector<std::string> operators) {
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& full : operators) {
    auto dot = full.find('.');
    c10::OperatorName name("aten::" + full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1));
    auto op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(kKey)) continue;
    kept->push_back(dispatcher.registerImpl(name, kKey, c10::KernelFunction::makeFromBoxedFunction<&on_cpu>(), std::nullopt, nullptr, "simaccel.mps"));
  }
  return int64_t(kept->size());
}
TORCH_LIBRARY(simaccel_mps, m) {
  register_hooks();
  m.def("register_kernels", &register_kernels);
  m.def("allocated_bytes() -> int", [] { return int64_t(allocated_bytes()); });
  m.def("unsafe_copies", &unsafe_copies);
  m.def("default_generator() -> Generator?", [] { return default_generator(); });
}
}  // namespace simaccel_mps
