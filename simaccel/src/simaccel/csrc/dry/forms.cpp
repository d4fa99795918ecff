#include "forms.h"

namespace simaccel::dry {
namespace {
constexpr size_t kMostTriedBytes = size_t(512) << 20;
constexpr size_t kMostNamedBytes = 300;

Tensor new_meta(IntArrayRef sizes, IntArrayRef strides, at::ScalarType dtype) { return at::detail::empty_strided_meta(sizes, strides, dtype); }
Tensor new_meta_longs(int64_t number) { return new_meta({number}, {1}, at::kLong); }

c10::IValue map_tensors(const c10::IValue& value, const std::function<Tensor(const Tensor&)>& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(map(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (std::optional<Tensor> tensor : value.toOptionalTensorVector())
      list.push_back(tensor && tensor->defined() ? std::optional<Tensor>(map(*tensor)) : tensor);
    return list;
  }
  return value;
}

class FormInference {
 public:
  FormInference(const c10::OperatorHandle& op, const DryOperator& facts, const Arguments& arguments)
      : op_(op), facts_(facts), arguments_(arguments), form_(std::make_unique<CallForm>()) {}

  std::unique_ptr<CallForm> run(const torch::jit::Stack& values) {
    auto begin = std::chrono::steady_clock::now();
    name_call();
    torch::jit::Stack stack;
    for (auto& value : values) stack.push_back(on_meta(value));
    if (facts_.is_indexing) masks_to_indices(stack);
    {
      at::AutoDispatchBelowADInplaceOrView below;
      if (!assume_results(stack, values) && !call_meta_kernel(stack)) try_on_zeros(stack);
    }
    for (auto& value : stack) form_->results.push_back(result_form(value));
    note_resized_arguments();
    if (settings.dry_scratch) note_scratch(values);
    counters.meta_ns += (std::chrono::steady_clock::now() - begin).count();
    counters.num_new_forms++;
    return std::move(form_);
  }

 private:
  void name_call() {
    const std::string& overload = op_.operator_name().overload_name;
    form_->name = facts_.name + (overload.empty() ? "" : "." + overload);
    for (auto& tensor : arguments_.tensors) {
      if (form_->arguments.size() > kMostNamedBytes) {
        form_->arguments += "..." + std::to_string(arguments_.tensors.size()) + " tensors";
        break;
      }
      form_->arguments += (form_->arguments.empty() ? "" : " ") + form_of(tensor);
    }
  }

  Tensor on_meta(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return tensor;
    for (auto& pair : pairs_)
      if (pair.first.is_same(tensor)) return pair.second;
    Tensor meta = tensor;
    if (!tensor.is_cpu() || tensor.dim()) {
      meta = new_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
      meta.unsafeGetTensorImpl()->_set_conj(tensor.is_conj());
      meta.unsafeGetTensorImpl()->_set_neg(tensor.is_neg());
    }
    pairs_.emplace_back(tensor, meta);
    return meta;
  }
  c10::IValue on_meta(const c10::IValue& value) {
    if (value.isDevice() && value.toDevice().type() == kDeviceType) return c10::Device(c10::kMeta);
    if (value.isGenerator()) return {};
    return map_tensors(value, [&](const Tensor& tensor) { return on_meta(tensor); });
  }

  // An index by a mask of unknown numbers: as if it chose every element.
  static void masks_to_indices(torch::jit::Stack& stack) {
    for (auto& value : stack) {
      if (!value.isOptionalTensorList()) continue;
      c10::List<std::optional<Tensor>> list;
      for (std::optional<Tensor> tensor : value.toOptionalTensorVector()) {
        if (tensor && tensor->defined() && (tensor->scalar_type() == at::kBool || tensor->scalar_type() == at::kByte)) {
          for (int64_t i = 0; i < tensor->dim(); i++) list.push_back(new_meta_longs(tensor->numel()));
        } else {
          list.push_back(tensor);
        }
      }
      value = std::move(list);
    }
  }

  // Operators whose results depend on numbers. Returns whether this is one of them.
  bool assume_results(torch::jit::Stack& stack, const torch::jit::Stack& values) {
    const std::string& name = facts_.name;
    Tensor first;
    for (auto& value : stack)
      if (!first.defined() && value.isTensor()) first = value.toTensor();
    auto assume = [&](const char* text) { note_assumption(text + (" " + form_->arguments)); };
    auto integer = [&](size_t i, int64_t otherwise) { return values.size() > i && values[i].isInt() ? values[i].toInt() : otherwise; };
    if (name == "aten::nonzero") {
      assume("nonzero: every element is taken as not zero");
      stack = {new_meta({first.numel(), first.dim()}, {1, first.numel()}, at::kLong)};
    } else if (name == "aten::masked_select") {
      assume("masked_select: every element is taken as chosen");
      stack = {new_meta({first.numel()}, {1}, first.scalar_type())};
    } else if (name == "aten::equal") {
      assume("equal: taken as true");
      stack = {c10::IValue(true)};
    } else if (name == "aten::_unique2" || name == "aten::_unique") {
      assume("unique: every element is taken as different");
      stack = {new_meta({first.numel()}, {1}, first.scalar_type()), new_meta_longs(first.numel())};
      if (name == "aten::_unique2") stack.emplace_back(new_meta_longs(first.numel()));
    } else if (name == "aten::repeat_interleave" && op_.operator_name().overload_name == "Tensor") {
      assume("repeat_interleave: one of each");
      stack = {new_meta_longs(integer(1, first.numel()))};
    } else if (name == "aten::bincount") {
      stack = {new_meta_longs(std::max<int64_t>(1, integer(2, 1)))};
    } else {
      return false;
    }
    return true;
  }

  // Returns false where there is no meta kernel; errors of shapes, types and devices are the program's.
  bool call_meta_kernel(torch::jit::Stack& stack) {
    auto says = [](const std::string& text, std::initializer_list<const char*> words) {
      return std::any_of(words.begin(), words.end(), [&](const char* word) { return text.find(word) != std::string::npos; });
    };
    auto arguments = stack;
    try {
      op_.callBoxed(&stack);
      return true;
    } catch (const c10::NotImplementedError&) {
    } catch (const python_error& error) {
      if (!says(error.what(), {"NotImplementedError", "DataDependent", "DynamicOutputShape"})) throw;
    } catch (const c10::Error& error) {
      if (!says(error.what(), {"not implemented", "meta", "Meta"})) throw;
    }
    stack = std::move(arguments);
    return false;
  }

  void try_on_zeros(torch::jit::Stack& stack) {
    size_t bytes = 0;
    for (auto& pair : pairs_) bytes += pair.first.numel() * pair.first.element_size();
    TORCH_CHECK(bytes < kMostTriedBytes, "dry mode: ", form_->name, " has no meta kernel and its arguments (", form_->arguments,
                ") are too large to try it on the host");
    note_assumption("no meta kernel, tried on zeros on the host: " + form_->name);
    std::map<void*, Tensor> zeros;
    auto zeros_for = [&](const Tensor& tensor) -> Tensor {
      if (!tensor.defined() || !tensor.is_meta()) return tensor;
      auto& zero = zeros[tensor.unsafeGetTensorImpl()];
      if (zero.defined()) return zero;
      int64_t items = bytes_needed(tensor) / tensor.element_size();
      zero = at::zeros({items}, at::TensorOptions().dtype(tensor.dtype())).as_strided(tensor.sizes(), tensor.strides());
      for (auto& pair : pairs_)
        if (pair.second.is_same(tensor)) pair.second = zero;
      return zero;
    };
    for (auto& value : stack) {
      if (value.isDevice() && value.toDevice().is_meta()) value = c10::Device(c10::kCPU);
      else value = map_tensors(value, zeros_for);
    }
    ran_on_host_ = true;
    op_.callBoxed(&stack);
  }

  TensorForm tensor_form(const Tensor& result) {
    TensorForm form;
    if (!result.defined()) return form;
    form.sizes = result.sizes().vec();
    form.strides = result.strides().vec();
    form.dtype = result.scalar_type();
    form.is_conj = result.is_conj();
    form.is_neg = result.is_neg();
    for (size_t i = 0; i < arguments_.tensors.size(); i++) {
      for (auto& [tensor, meta] : pairs_) {
        if (!tensor.is_same(arguments_.tensors[i])) continue;
        bool shares = meta.has_storage() && result.has_storage() &&
                      result.storage().unsafeGetStorageImpl() == meta.storage().unsafeGetStorageImpl();
        if (!meta.is_same(result) && !shares) continue;
        form.kind = meta.is_same(result) ? TensorForm::kArgument : TensorForm::kView;
        form.argument = int(i);
        form.offset = result.storage_offset();
        return form;
      }
    }
    form.kind = result.is_cpu() && !ran_on_host_ ? TensorForm::kOnHost : TensorForm::kNew;
    if (form.kind == TensorForm::kNew) form_->new_bytes += bytes_needed(result) - result.storage_offset() * result.element_size();
    return form;
  }
  ResultForm result_form(const c10::IValue& value) {
    ResultForm form;
    if (value.isTensor()) {
      form.tensors.push_back(tensor_form(value.toTensor()));
    } else if (value.isTensorList()) {
      form.is_list = true;
      for (const Tensor& tensor : value.toTensorVector()) form.tensors.push_back(tensor_form(tensor));
    } else {
      form.is_constant = true;
      form.constant = value;
    }
    return form;
  }

  void note_resized_arguments() {
    for (size_t i = 0; i < arguments_.tensors.size(); i++) {
      auto& argument = arguments_.tensors[i];
      if (!arguments_.is_written[i] || !on_device(argument)) continue;
      for (auto& [tensor, meta] : pairs_) {
        if (!tensor.is_same(argument) || (meta.sizes() == argument.sizes() && meta.strides() == argument.strides())) continue;
        TensorForm form;
        form.sizes = meta.sizes().vec();
        form.strides = meta.strides().vec();
        form_->new_bytes += meta.numel() * meta.element_size();
        form_->resized.emplace_back(int(i), form);
      }
    }
  }

  // What CUDA's kernels allocate beside their results, where their sources say it.
  void note_scratch(const torch::jit::Stack& values) {
    if (facts_.name != "aten::_scaled_dot_product_flash_attention_backward") return;
    auto round_up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
    auto& q = values[1].toTensor();
    int64_t batch_heads = q.size(0) * q.size(1), tokens = round_up(q.size(2), 128), width = round_up(q.size(3), q.size(3) <= 128 ? 32 : 64);
    form_->scratch_bytes = {size_t(batch_heads * tokens * 4), size_t(batch_heads * tokens * width * 4)};
  }

  const c10::OperatorHandle& op_;
  const DryOperator& facts_;
  const Arguments& arguments_;
  std::unique_ptr<CallForm> form_;
  std::vector<std::pair<Tensor, Tensor>> pairs_;  // an argument, and what stands for it
  bool ran_on_host_ = false;
};
}  // namespace

std::unique_ptr<CallForm> infer_form(const c10::OperatorHandle& op, const DryOperator& facts, const torch::jit::Stack& values,
                                     const Arguments& arguments) {
  return FormInference(op, facts, arguments).run(values);
}
}  // namespace simaccel::dry
