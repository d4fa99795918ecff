#include "kernels.h"

#include "generators.h"

namespace simaccel {
static std::unordered_map<const void*, std::unique_ptr<OperatorFacts>>& all_facts = *new std::unordered_map<const void*, std::unique_ptr<OperatorFacts>>;
static std::map<std::string, uint64_t>& counts = *new std::map<std::string, uint64_t>;
static uint64_t num_counted = 0;

uint64_t num_kernels() { return num_counted; }
std::map<std::string, uint64_t> kernel_counts() {
  Lock lock(mutex);
  return counts;
}

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  static const std::set<std::string> indexing = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put",
                                                 "aten::_unsafe_index", "aten::_unsafe_index_put"};
  static const std::set<std::string> products = {"aten::mm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::addmv_", "aten::addbmm",
                                                 "aten::dot", "aten::vdot"};
  static const std::set<std::string> matmuls = {"aten::addmm", "aten::_addmm_activation", "aten::_scaled_mm", "aten::_int_mm"};
  Lock lock(mutex);
  auto& facts = all_facts[&op.schema()];
  if (facts) return *facts;
  facts = std::make_unique<OperatorFacts>();
  facts->name = op.operator_name().name;
  for (auto& result : op.schema().returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) facts->is_view = true;
  facts->takes_masks = indexing.count(facts->name);
  bool depends_on_numbers = op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
  facts->waits = depends_on_numbers && !facts->takes_masks;
  facts->draws_by_default = op.hasTag(at::Tag::nondeterministic_seeded);
  for (auto& argument : op.schema().arguments())
    if (argument.name() == "generator") facts->draws_by_default = false;
  facts->needs_fp8 = facts->name == "aten::_scaled_mm";
  facts->is_matmul = matmuls.count(facts->name);
  facts->is_product = facts->is_matmul || products.count(facts->name);
  return *facts;
}

namespace {
// One call of an operator: its arguments become CPU tensors, the CPU's kernel runs, its results become the device's.
class KernelCall {
 public:
  KernelCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), arguments_(op.schema().arguments()), facts_(facts_of(op)), stack_(stack), begin_(stack.size() - arguments_.size()) {}

  void run() {
    for (size_t i = 0; i < arguments_.size(); i++) {
      auto* alias = arguments_[i].alias_info();
      auto& value = stack_[begin_ + i];
      value = on_cpu(value, alias && alias->isWrite());
    }
    if (device_ < 0) device_ = current_device();
    TORCH_CHECK(!mixes_cpu_ || facts_.takes_masks || accesses_.empty(),
                "Expected all tensors to be on the same device, but found at least two devices, cuda:", device_, " and cpu! (in ",
                facts_.name, ")");
    TORCH_CHECK(!facts_.needs_fp8 || settings.is_rocm || settings.capability >= 89,
                "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+");
    fill_in_generators();
    CurrentDevice on(device_);
    use_workspace(facts_, device_);
    stream_ = current_stream(device_);
    if (!facts_.is_view) launch_kernel();
    auto narrow_type = widen_softmax();
    {
      at::AutoDispatchBelowADInplaceOrView below;
      std::optional<DrawsOfDevice> draws;
      if (facts_.draws_by_default) draws.emplace(device_);
      op_.callBoxed(&stack_);
    }
    if (narrow_type) stack_.back() = stack_.back().toTensor().to(*narrow_type);
    follow_resized_outputs();
    size_t num_results = op_.schema().returns().size();
    for (size_t i = stack_.size() - num_results; i < stack_.size(); i++) stack_[i] = on_device(stack_[i]);
  }

 private:
  Tensor on_cpu(const Tensor& tensor, bool writes) {
    if (!tensor.defined()) return tensor;
    if (!simaccel::on_device(tensor)) {
      if (tensor.dim() && tensor.device().is_cpu()) mixes_cpu_ = true;
      return tensor;
    }
    if (facts_.takes_masks && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte)) has_mask_ = true;
    int device = tensor.device().index();
    TORCH_CHECK(device_ < 0 || device == device_ || tensor.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, cuda:", device_, " and cuda:", device,
                "! (in ", facts_.name, ")");
    if (device_ < 0) device_ = device;
    accesses_.emplace_back(tensor, writes);
    return views_.of(tensor);
  }

  c10::IValue on_cpu(const c10::IValue& value, bool writes) {
    if (value.isTensor()) return on_cpu(value.toTensor(), writes);
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(on_cpu(tensor, writes));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (std::optional<Tensor> tensor : value.toOptionalTensorVector())
        list.push_back(tensor && tensor->defined() ? std::optional<Tensor>(on_cpu(*tensor, writes)) : tensor);
      return list;
    }
    if (value.isDevice() && value.toDevice().type() == kDeviceType) {
      if (device_ < 0) device_ = index_of(value.toDevice());
      return c10::Device(c10::kCPU);
    }
    if (value.isGenerator()) return cpu_generator_of(value.toGenerator());
    return value;
  }

  // CUDA has a softmax from fp16 to fp32, which the CPU has not: it takes a wider input. Returns the dtype of the result
  // of a backward pass, which is narrowed afterwards.
  std::optional<at::ScalarType> widen_softmax() {
    auto& first = stack_[begin_];
    if (facts_.name == "aten::_softmax" || facts_.name == "aten::_log_softmax") {
      auto& is_widening = stack_[begin_ + 2];
      if (is_widening.toBool()) first = first.toTensor().to(at::kFloat);
      is_widening = false;
    } else if (facts_.name == "aten::_softmax_backward_data" || facts_.name == "aten::_log_softmax_backward_data") {
      auto input_type = stack_[begin_ + 3].toScalarType(), type = first.toTensor().scalar_type();
      stack_[begin_ + 3] = type;
      if (input_type != type) return input_type;
    }
    return {};
  }

  void fill_in_generators() {
    for (size_t i = 0; i < arguments_.size(); i++)
      if (stack_[begin_ + i].isNone() && arguments_[i].name() == "generator")
        stack_[begin_ + i] = cpu_generator_of(default_generator(device_));
  }

  void launch_kernel() {
    python_stack_ = current_stack();
    count_ = launch(stream_);
    for (auto& [tensor, writes] : accesses_) record_access(tensor, writes, stream_, count_, facts_.name.c_str(), python_stack_);
    if (facts_.waits || has_mask_)
      host_waits_for_stream(stream_, (facts_.name + ": the form of its result depends on numbers").c_str());
    Lock lock(mutex);
    num_counted++;
    counts[facts_.name]++;
  }

  // An out= argument may have been made larger, or got another form.
  void follow_resized_outputs() {
    for (auto& [storage, on_cpu] : views_.storages) {
      if (on_cpu.data_ptr().get() == kernel_address(storage->data_ptr().get())) continue;
      resize_storage(storage, on_cpu.nbytes());
      if (on_cpu.nbytes()) std::memcpy(kernel_address(storage->data_ptr().get()), on_cpu.data(), on_cpu.nbytes());
    }
    for (auto& [tensor, view] : views_.pairs)
      if (view.sizes() != tensor.sizes() || view.strides() != tensor.strides())
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
  }

  Tensor on_device(const Tensor& result) {
    if (!result.defined()) return result;
    for (auto& [tensor, view] : views_.pairs)
      if (view.is_same(result)) return tensor;
    for (auto& [tensor, view] : views_.pairs)
      if (result.has_storage() && result.storage().is_alias_of(view.storage())) return view_with_form_of(tensor, result);
    if (!result.has_storage()) return result;
    if (!count_) count_ = launch(stream_);
    Tensor tensor = new_tensor(result.sizes(), result.strides(), result.scalar_type(), device_);
    if (result.numel()) {
      size_t bytes = bytes_needed(result) - result.storage_offset() * result.element_size();
      std::memcpy(kernel_address(tensor.storage().data_ptr().get()), result.const_data_ptr(), bytes);
      record_access(tensor, true, stream_, count_, facts_.name.c_str(), python_stack_);
    }
    tensor.unsafeGetTensorImpl()->_set_conj(result.is_conj());
    tensor.unsafeGetTensorImpl()->_set_neg(result.is_neg());
    return tensor;
  }
  c10::IValue on_device(const c10::IValue& value) {
    if (value.isTensor()) return on_device(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(on_device(tensor));
    return list;
  }

  const c10::OperatorHandle& op_;
  const std::vector<c10::Argument>& arguments_;
  const OperatorFacts& facts_;
  torch::jit::Stack& stack_;
  size_t begin_;
  CpuViews views_;
  std::vector<std::pair<Tensor, bool>> accesses_;  // and whether they are written
  int device_ = -1, stream_ = -1;
  bool has_mask_ = false, mixes_cpu_ = false;
  Stack python_stack_;
  uint64_t count_ = 0;
};
}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  raise_pending_finding();
  KernelCall(op, *stack).run();
}

void raise_without_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "Could not run '", op.operator_name(), "' with arguments from the 'CUDA' backend: no kernel for it is ",
                              "in a CUDA build of torch (native_functions.yaml).");
}
}  // namespace simaccel
