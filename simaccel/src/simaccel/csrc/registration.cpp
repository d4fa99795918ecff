// Which function serves which operator under the CUDA key.
#include "registration.h"

#include "attention.h"
#include "dry/dry.h"
#include "kernels.h"

namespace simaccel {
// Operators of libraries, and those of torch that are not listed below.
TORCH_LIBRARY_IMPL(_, CUDA, m) {
  if (environment_is_dry()) m.fallback(torch::CppFunction::makeFromBoxedFunction<&dry::run>());
  else m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("record_stream", TORCH_FN(record_stream));
  if (environment_is_dry()) {
    m.impl("empty.memory_format", TORCH_FN(dry::empty));
    m.impl("empty_strided", TORCH_FN(dry::empty_strided));
    m.impl("_local_scalar_dense", TORCH_FN(dry::local_scalar_dense));
    m.impl("copy_", TORCH_FN(dry::copy_));
    m.impl("_copy_from", TORCH_FN(dry::copy_from));
    m.impl("_copy_from_and_resize", TORCH_FN(dry::copy_from_and_resize));
    m.impl("view", TORCH_FN(dry::view));
    m.impl("as_strided", TORCH_FN(dry::as_strided));
    m.impl("_reshape_alias", TORCH_FN(dry::reshape_alias));
    return;
  }
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_scaled_dot_product_flash_attention", TORCH_FN(flash_attention));
  m.impl("_scaled_dot_product_flash_attention_backward", TORCH_FN(flash_attention_backward));
  m.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient_attention));
  m.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_attention_backward));
}

// Registrations end with their handles, so the handles are kept for as long as the process lives.
static auto& registrations() {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  return *handles;
}
static c10::OperatorName operator_name(const std::string& full_name) {
  auto dot = full_name.find('.');
  return {"aten::" + full_name.substr(0, dot), dot == std::string::npos ? "" : full_name.substr(dot + 1)};
}
template <void (*function)(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*)>
static bool register_kernel(const c10::OperatorName& name) {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto op = dispatcher.findSchema(name);
  if (!op || op->hasKernelForDispatchKey(kDispatchKey)) return false;
  registrations().push_back(dispatcher.registerImpl(name, kDispatchKey, c10::KernelFunction::makeFromBoxedFunction<function>(),
                                                    std::nullopt, nullptr, "simaccel"));
  return true;
}

int register_operators(const std::vector<std::string>& with_cuda, const std::vector<std::string>& without_cuda) {
  int number = 0;
  for (auto& name : without_cuda) register_kernel<&raise_without_kernel>(operator_name(name));
  if (settings.is_dry) {
    for (auto& name : with_cuda) number += register_kernel<&dry::run>(operator_name(name));
    registrations().push_back(c10::Dispatcher::singleton().registerImpl({"aten::copy_", ""}, c10::DispatchKey::CPU,
        c10::KernelFunction::makeFromUnboxedRuntimeFunction(&dry::copy_on_host), std::nullopt, nullptr, "simaccel"));
    return number;
  }
  for (auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(c10::DispatchKey::CPU))
    if (name.name.rfind("aten::", 0) == 0) number += register_kernel<&run_on_cpu>(name);
  for (auto* name : {"convolution", "convolution_backward"}) number += register_kernel<&run_on_cpu>(operator_name(name));
  return number;
}

int register_library(const std::string& library) {
  int number = 0;
  if (settings.is_dry) return number;
  for (auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name.rfind(library + "::", 0) == 0) number += register_kernel<&run_on_cpu>(name);
  return number;
}
}  // namespace simaccel
