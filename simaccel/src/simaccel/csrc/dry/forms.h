// What calls of an operator return, by the form of their arguments.
#pragma once
#include "dry.h"

namespace simaccel::dry {
struct TensorForm {
  enum Kind : uint8_t { kNew, kArgument, kView, kUndefined, kOnHost } kind = kUndefined;
  int argument = -1;  // which one it is, or is a view of
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool is_conj = false, is_neg = false;
};
struct ResultForm {
  bool is_list = false, is_constant = false;
  std::vector<TensorForm> tensors;
  c10::IValue constant;
};
struct CallForm {
  std::vector<ResultForm> results;
  std::vector<std::pair<int, TensorForm>> resized;  // arguments that the call gives another form
  std::vector<size_t> scratch_bytes;
  size_t new_bytes = 0;
  uint64_t num_calls = 0;
  std::string name, arguments;
  bool is_computable = true;
};

struct DryOperator {
  std::string name;
  bool is_in_place = false, has_out = false;
  bool overwrites = false;   // its results do not depend on what they replace
  bool is_dynamic = false;   // the form of its result depends on numbers
  bool is_indexing = false;
  std::unordered_map<std::string, std::unique_ptr<CallForm>> forms;
};

struct Arguments {
  std::deque<Tensor> tensors;
  std::vector<bool> is_written;
  int device = -1;
  bool are_known = true, any_on_device = false, any_on_cpu = false;
};

std::string key_of(const c10::IValue*, size_t number, bool with_floats);
std::unique_ptr<CallForm> infer_form(const c10::OperatorHandle&, const DryOperator&, const torch::jit::Stack& arguments, const Arguments&);
}  // namespace simaccel::dry
