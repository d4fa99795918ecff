// The kernel of dry mode.
#include "../attention.h"
#include "../bindings.h"
#include "forms.h"

namespace simaccel::dry {
static std::unordered_map<const void*, std::unique_ptr<DryOperator>>& operators = *new std::unordered_map<const void*, std::unique_ptr<DryOperator>>;
static std::mutex operators_mutex;

static DryOperator& dry_operator(const c10::OperatorHandle& op) {
  static const std::set<std::string> overwriting = {"aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_",
                                                    "aten::bernoulli_", "aten::exponential_", "aten::arange", "aten::linspace",
                                                    "aten::eye", "aten::range", "aten::logspace", "aten::randperm"};
  std::lock_guard<std::mutex> lock(operators_mutex);
  auto& dry = operators[&op.schema()];
  if (dry) return *dry;
  dry = std::make_unique<DryOperator>();
  dry->name = op.operator_name().name;
  for (auto& argument : op.schema().arguments()) {
    if (!argument.alias_info() || !argument.alias_info()->isWrite()) continue;
    dry->is_in_place = true;
    if (argument.is_out()) dry->has_out = true;
  }
  dry->overwrites = dry->has_out || overwriting.count(dry->name);
  dry->is_indexing = facts_of(op).takes_masks;
  dry->is_dynamic = !dry->is_indexing && (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape));
  return *dry;
}

namespace {
// What is assumed of a result whose arguments are not known: a loss is finite.
int assumed_result(const std::string& name, const c10::IValue* values, size_t num_values, const Arguments& arguments) {
  static const std::set<std::string> passing = {"aten::any", "aten::all", "aten::mul", "aten::mul_", "aten::bitwise_and",
      "aten::bitwise_and_", "aten::bitwise_or", "aten::logical_and", "aten::logical_or", "aten::max", "aten::min", "aten::amax",
      "aten::amin", "aten::sum", "aten::cat", "aten::index", "aten::clone", "aten::index_select"};
  auto& tensors = arguments.tensors;
  if (tensors.empty()) return -1;
  if (name == "aten::isnan" || name == "aten::isinf" || name == "aten::isneginf" || name == "aten::isposinf") return 0;
  if (name == "aten::isfinite") return 1;
  bool is_equality = name == "aten::eq" || name == "aten::ne";
  if (is_equality && num_values > 1 && values[1].isDouble() && std::isinf(values[1].toDouble())) return name == "aten::ne";
  if (is_equality && tensors.size() == 2 && tensors[0].is_same(tensors[1])) return name == "aten::eq";
  bool negates = name == "aten::logical_not" || name == "aten::bitwise_not";
  if (!negates && !passing.count(name)) return -1;
  int assumed = -1;
  for (auto& tensor : tensors) {
    if (!on_device(tensor)) continue;
    int number = assumed_number(tensor);
    if (number < 0 || (assumed >= 0 && number != assumed)) return -1;
    assumed = number;
  }
  if (assumed < 0 || (name == "aten::sum" && assumed == 1)) return -1;
  return negates ? 1 - assumed : assumed;
}

class DryCall {
 public:
  DryCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack)
      : op_(op), keys_(keys), dry_(dry_operator(op)), stack_(stack), num_(op.schema().arguments().size()) {}

  void run() {
    take_arguments();
    counters.num_operators++;
    launch(current_stream(device_));
    bool has_mask = false;
    if (dry_.is_indexing)
      for (size_t i = 1; i < arguments_.tensors.size(); i++)
        has_mask |= arguments_.tensors[i].scalar_type() == at::kBool || arguments_.tensors[i].scalar_type() == at::kByte;
    bool is_dynamic = dry_.is_dynamic || has_mask;
    if (is_dynamic) count_wait();
    if (is_dynamic && arguments_.are_known && arguments_.any_on_device && compute(nullptr)) return;
    CallForm& form = find_form();
    {
      CurrentDevice on(device_);
      use_workspace(facts_of(op_), device_);
    }
    if (form.is_computable && arguments_.are_known && !is_dynamic && form.new_bytes <= settings.dry_known_bytes) {
      if (compute(&form)) return;
      form.is_computable = false;
    }
    produce(form);
  }

 private:
  c10::IValue* values() { return &stack_[stack_.size() - num_]; }

  void take(const Tensor& tensor, bool is_written) {
    if (!tensor.defined()) return;
    auto& args = arguments_;
    args.tensors.push_back(tensor);
    args.is_written.push_back(is_written);
    if (!on_device(tensor)) {
      if (tensor.dim() && tensor.device().is_cpu()) args.any_on_cpu = true;
      return;
    }
    int device = tensor.device().index();
    TORCH_CHECK(args.device < 0 || device == args.device || tensor.dim() == 0 || args.tensors.front().dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, cuda:", args.device, " and cuda:", device,
                "! (in ", dry_.name, ")");
    if (args.device < 0 || tensor.dim()) args.device = device;
    args.any_on_device = true;
    bool has_known_result = is_known(tensor) || (is_written && dry_.overwrites && fills_storage(tensor));
    if (!is_little(tensor) || !has_known_result) args.are_known = false;
  }

  void take_arguments() {
    int named_device = -1;
    for (size_t i = 0; i < num_; i++) {
      auto& value = values()[i];
      auto* alias = op_.schema().arguments()[i].alias_info();
      bool is_written = alias && alias->isWrite();
      if (value.isTensor()) take(value.toTensor(), is_written);
      else if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) take(tensor, is_written);
      else if (value.isOptionalTensorList()) {
        for (std::optional<Tensor> tensor : value.toOptionalTensorVector())
          if (tensor) take(*tensor, is_written);
      } else if (value.isDevice() && value.toDevice().type() == kDeviceType) named_device = index_of(value.toDevice());
    }
    device_ = named_device >= 0 ? named_device : arguments_.device >= 0 ? arguments_.device : current_device();
    bool is_torchs = dry_.name.rfind("aten::", 0) == 0;
    TORCH_CHECK(!arguments_.any_on_cpu || dry_.is_indexing || !arguments_.any_on_device || !is_torchs,
                "Expected all tensors to be on the same device, but found at least two devices, cuda:", device_, " and cpu! (in ",
                dry_.name, ")");
  }

  CallForm& find_form() {
    std::string key = key_of(values(), num_, !dry_.is_in_place || dry_.has_out);
    {
      std::lock_guard<std::mutex> lock(operators_mutex);
      if (auto entry = dry_.forms.find(key); entry != dry_.forms.end()) {
        entry->second->num_calls++;
        return *entry->second;
      }
    }
    auto form = infer_form(op_, dry_, torch::jit::Stack(stack_.end() - num_, stack_.end()), arguments_);
    std::lock_guard<std::mutex> lock(operators_mutex);
    auto& entry = dry_.forms[key];
    entry = std::move(form);
    entry->num_calls++;
    return *entry;
  }

  // Computes a call on a few known numbers. Returns false where the CPU has no kernel or returns another form.
  bool compute(const CallForm* form) {
    torch::jit::Stack results(stack_.end() - num_, stack_.end());
    auto begin = std::chrono::steady_clock::now();
    try {
      run_on_cpu(op_, keys_, &results);
    } catch (const c10::NotImplementedError&) {
      return false;
    } catch (const c10::Error& error) {
      if (std::string(error.what()).find("not implemented") != std::string::npos) return false;
      throw;
    }
    if (form && !has_form(results, *form)) return false;
    for (auto& value : results) {
      if (value.isTensor() && on_device(value.toTensor())) set_known(value.toTensor(), is_little(value.toTensor()));
      if (!value.isTensorList()) continue;
      for (const Tensor& tensor : value.toTensorVector())
        if (on_device(tensor)) set_known(tensor, is_little(tensor));
    }
    for (size_t i = 0; i < arguments_.tensors.size(); i++)
      if (arguments_.is_written[i] && on_device(arguments_.tensors[i])) set_known(arguments_.tensors[i], true);
    return_results(std::move(results));
    counters.computing_ns += (std::chrono::steady_clock::now() - begin).count();
    counters.num_computed++;
    return true;
  }
  static bool has_form(const torch::jit::Stack& results, const CallForm& form) {
    for (size_t i = 0; i < form.results.size(); i++) {
      auto& expected = form.results[i];
      if (expected.is_constant) continue;
      auto tensors = expected.is_list ? results[i].toTensorVector() : std::vector<Tensor>{results[i].toTensor()};
      if (tensors.size() != expected.tensors.size()) return false;
      for (size_t j = 0; j < tensors.size(); j++) {
        auto& tensor = expected.tensors[j];
        if (tensor.kind != TensorForm::kNew) continue;
        if (!tensors[j].defined() || tensors[j].scalar_type() != tensor.dtype || tensors[j].sizes() != IntArrayRef(tensor.sizes)) return false;
      }
    }
    return true;
  }

  void return_results(torch::jit::Stack results) {
    stack_.erase(stack_.end() - num_, stack_.end());
    for (auto& value : results) stack_.push_back(std::move(value));
  }

  // Allocates results without computing them.
  void produce(const CallForm& form) {
    auto& tensors = arguments_.tensors;
    int assumed = assumed_result(dry_.name, values(), num_, arguments_);
    // Its flag of infinite gradients keeps its number: gradients are taken as finite.
    bool checks_gradients = dry_.name == "aten::_amp_foreach_non_finite_check_and_unscale_";
    for (size_t i = 0; i < tensors.size(); i++) {
      bool is_flag = checks_gradients && i + 2 == tensors.size();
      if (arguments_.is_written[i] && on_device(tensors[i]) && !is_flag)
        set_known(tensors[i], false, fills_storage(tensors[i]) ? assumed : -1);
    }
    CurrentDevice on(device_);
    for (auto& [i, resized] : form.resized) {
      tensors[i].unsafeGetTensorImpl()->set_sizes_and_strides(resized.sizes, resized.strides, tensors[i].storage_offset());
      make_room(tensors[i]);
    }
    torch::jit::Stack results;
    for (auto& result : form.results) {
      if (result.is_constant) {
        results.push_back(result.constant);
      } else if (result.is_list) {
        c10::List<Tensor> list;
        for (auto& tensor : result.tensors) list.push_back(produce(tensor, assumed));
        results.emplace_back(std::move(list));
      } else {
        results.emplace_back(produce(result.tensors[0], assumed));
      }
    }
    std::vector<c10::DataPtr> scratch;  // freed when the call ends
    for (size_t bytes : form.scratch_bytes) scratch.push_back(device_allocator.allocate(bytes));
    return_results(std::move(results));
  }
  Tensor produce(const TensorForm& form, int assumed) {
    switch (form.kind) {
      case TensorForm::kUndefined: return Tensor();
      case TensorForm::kArgument: return arguments_.tensors[form.argument];
      case TensorForm::kOnHost: return at::zeros({}, at::TensorOptions().dtype(form.dtype)).expand(form.sizes);
      case TensorForm::kView: {
        auto& base = arguments_.tensors[form.argument];
        Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
                                                               c10::scalarTypeToTypeMeta(form.dtype));
        view.unsafeGetTensorImpl()->set_sizes_and_strides(form.sizes, form.strides, base.storage_offset() + form.offset);
        return view;
      }
      case TensorForm::kNew: break;
    }
    Tensor tensor = new_tensor(form.sizes, form.strides, form.dtype, device_);
    if (assumed >= 0) set_known(tensor, false, assumed);
    tensor.unsafeGetTensorImpl()->_set_conj(form.is_conj);
    tensor.unsafeGetTensorImpl()->_set_neg(form.is_neg);
    return tensor;
  }

  const c10::OperatorHandle& op_;
  c10::DispatchKeySet keys_;
  DryOperator& dry_;
  torch::jit::Stack& stack_;
  size_t num_;
  Arguments arguments_;
  int device_ = 0;
};
}  // namespace

void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Inside inside;
  if (facts_of(op).is_view) {
    counters.num_views++;
    return run_on_cpu(op, keys, stack);
  }
  DryCall(op, keys, *stack).run();
}

std::vector<std::tuple<std::string, std::string, uint64_t, size_t>> operator_forms() {
  std::vector<std::tuple<std::string, std::string, uint64_t, size_t>> all;
  std::lock_guard<std::mutex> lock(operators_mutex);
  for (auto& [_, dry] : operators)
    for (auto& [key, form] : dry->forms) all.emplace_back(form->name, form->arguments, form->num_calls, form->new_bytes);
  return all;
}
}  // namespace simaccel::dry

namespace simaccel {
void bind_dry(py::module_& m) {
  m.def("dry_counts", [] {
    auto& c = dry::counters;
    std::map<std::string, uint64_t> all{{"inside_ns", c.inside_ns}, {"meta_ns", c.meta_ns}, {"computing_ns", c.computing_ns},
        {"operators", c.num_operators}, {"views", c.num_views}, {"new_forms", c.num_new_forms}, {"computed", c.num_computed},
        {"items", c.num_items}, {"syncs", num_waits()}, {"bytes_to_device", c.bytes_to_device}, {"bytes_to_host", c.bytes_to_host},
        {"hole_copies", c.num_hole_copies}, {"hole_bytes", c.hole_bytes}};
    return all;
  });
  m.def("assumptions", &dry::assumptions);
  m.def("copy_forms", &dry::copy_forms);
  m.def("operator_forms", &dry::operator_forms);
}
}  // namespace simaccel
