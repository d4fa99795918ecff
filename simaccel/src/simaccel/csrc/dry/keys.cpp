#include "forms.h"

namespace simaccel::dry {
namespace {
class KeyWriter {
 public:
  explicit KeyWriter(bool with_floats) : with_floats_(with_floats) {}
  std::string key;

  void write(const c10::IValue& value) {
    if (value.isTensor()) return write(value.toTensor());
    if (value.isNone()) return put('n');
    if (value.isInt()) return put('i'), put(value.toInt());
    if (value.isDouble()) return put('d'), with_floats_ ? put(value.toDouble()) : void();
    if (value.isBool()) return put(value.toBool() ? 'y' : 'z');
    if (value.isString()) return put('s'), void(key += value.toStringRef()), put(char(0));
    if (value.isDevice()) return put('D'), put(char(value.toDevice().type()));
    if (value.isIntList()) {
      auto list = value.toIntVector();
      put('I'), put(list.size());
      for (auto item : list) put(item);
    } else if (value.isList()) {
      auto list = value.toListRef();
      put('['), put(list.size());
      for (auto& item : list) write(item);
    } else {
      put(value.isGenerator() ? 'g' : value.isComplexDouble() ? 'c' : '?');
    }
  }

 private:
  template <class T>
  void put(T value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void write(const Tensor& tensor) {
    if (!tensor.defined()) return put('u');
    put('t');
    put(char(tensor.scalar_type()));
    put(char(tensor.device().type()));
    put(char(tensor.dim()));
    put(char((tensor.is_conj() ? 1 : 0) | (tensor.is_neg() ? 2 : 0) | (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 4 : 0)));
    for (auto size : tensor.sizes()) put(size);
    for (auto stride : tensor.strides()) put(stride);
  }
  bool with_floats_;
};
}  // namespace

std::string key_of(const c10::IValue* values, size_t number, bool with_floats) {
  KeyWriter writer(with_floats);
  for (size_t i = 0; i < number; i++) writer.write(values[i]);
  return std::move(writer.key);
}

const char* short_name(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return "f32";
    case at::kBFloat16: return "bf16";
    case at::kHalf: return "f16";
    case at::kDouble: return "f64";
    case at::kLong: return "i64";
    case at::kInt: return "i32";
    case at::kChar: return "i8";
    case at::kByte: return "u8";
    case at::kBool: return "b8";
    default: return c10::toString(dtype);
  }
}
std::string form_of(const Tensor& tensor) {
  if (!tensor.defined()) return "-";
  std::string text = std::string(short_name(tensor.scalar_type())) + "[";
  for (int64_t i = 0; i < tensor.dim(); i++) text += (i ? "," : "") + std::to_string(tensor.size(i));
  return text + "]" + (tensor.is_contiguous() ? "" : "~") + (tensor.is_cpu() ? "@cpu" : "");
}
}  // namespace simaccel::dry
