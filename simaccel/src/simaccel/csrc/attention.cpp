// Attention as a GPU divides it: which kernel torch chooses, and what that kernel saves. The CPU's flash attention
// computes for all of them.
#include "attention.h"

namespace simaccel {
static bool has_flash_form(const Tensor& q, const Tensor& k, const Tensor& v, double dropout) {
  return q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && dropout == 0 && q.size(3) == v.size(3) && q.stride(3) == 1 && k.stride(3) == 1 &&
         v.stride(3) == 1 && q.size(1) == k.size(1);
}

int64_t choose_attention(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout, bool,
                         std::optional<double>, bool enable_gqa) {
  if (settings.is_dry) return choose_attention_dry(q, k, v, mask, enable_gqa);
  auto& context = at::globalContext();
  if (!enable_gqa && has_flash_form(q, k, v, dropout)) {
    bool is_half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
    bool has_ampere_kernels = settings.is_rocm || settings.capability >= 80;  // flash attention, and bf16 in the efficient one
    if (is_half && has_ampere_kernels && !mask && context.userEnabledFlashSDP()) return int64_t(at::SDPBackend::flash_attention);
    if (context.userEnabledMemEfficientSDP() && (has_ampere_kernels || q.scalar_type() != at::kBFloat16) && !(mask && mask->requires_grad()))
      return int64_t(at::SDPBackend::efficient_attention);
  }
  TORCH_CHECK(context.userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return int64_t(at::SDPBackend::math);
}

int64_t choose_attention_dry(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, bool enable_gqa) {
  auto& context = at::globalContext();
  bool has_four_dims = q.dim() == 4 && k.dim() == 4 && v.dim() == 4;
  bool is_half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  bool has_ampere_kernels = settings.is_rocm || settings.capability >= 80;
  bool same_heads = q.size(-3) == k.size(-3) && k.size(-3) == v.size(-3);
  bool is_dense = q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1;
  if (has_four_dims && is_half && has_ampere_kernels && is_dense && !mask && context.userEnabledFlashSDP() && q.size(3) == k.size(3) &&
      q.size(3) == v.size(3) && q.size(3) <= 256 && (same_heads || enable_gqa) && q.size(2) > 0 && k.size(2) > 0)
    return int64_t(at::SDPBackend::flash_attention);
  bool has_type = q.scalar_type() == at::kFloat || q.scalar_type() == at::kHalf || (is_half && has_ampere_kernels);
  int64_t alignment = is_half ? 8 : 4;
  if (has_four_dims && is_dense && same_heads && context.userEnabledMemEfficientSDP() && !(mask && mask->requires_grad()) && has_type &&
      q.size(3) % alignment == 0 && v.size(3) % alignment == 0)
    return int64_t(at::SDPBackend::efficient_attention);
  TORCH_CHECK(context.userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return int64_t(at::SDPBackend::math);
}

static Tensor seed(const Tensor& q) { return at::empty({}, q.options().dtype(at::kLong)); }

FlashResult flash_attention(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool is_causal, bool, std::optional<double> scale) {
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, is_causal, std::nullopt, scale);
  return {out, logsumexp, Tensor(), Tensor(), q.size(2), k.size(2), seed(q), seed(q), Tensor()};
}
static int64_t padded(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }
// What a kernel allocates beside the gradients and frees again: fp32 sums of the query's gradient, and one number a row.
static void allocate_sums(const Tensor& q, int64_t rows, int64_t width) {
  auto fp32 = q.options().dtype(at::kFloat);
  Tensor sums = at::empty({q.size(0), q.size(1), rows, width}, fp32), deltas = at::empty({q.size(0), q.size(1), rows}, fp32);
}
std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& logsumexp, const Tensor&,
    const Tensor&, c10::SymInt, c10::SymInt, double dropout, bool is_causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  auto gradients =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, logsumexp, dropout, is_causal, std::nullopt, scale);
  // flash_attn/flash_api.cpp pads rows to 128 and heads to 32.
  allocate_sums(q, padded(q.size(2), 128), q.size(3) <= 192 ? padded(q.size(3), 32) : 256);
  return gradients;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                               const std::optional<Tensor>& bias, bool, double dropout, bool is_causal,
                                                               std::optional<double> scale) {
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, is_causal, bias, scale);
  return {out, logsumexp, seed(q), seed(q)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, const Tensor& out, const Tensor& logsumexp,
    const Tensor&, const Tensor&, double dropout, std::array<bool, 4>, bool is_causal, std::optional<double> scale) {
  if (!grad.defined()) return {};
  auto mask = bias.defined() ? std::optional<Tensor>(bias) : std::nullopt;
  auto [dq, dk, dv] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, logsumexp, dropout, is_causal, mask, scale);
  // attention_backward.cu: half types sum in blocks of 64; in fp32 the product of result and gradient takes as much.
  bool is_half = q.scalar_type() != at::kFloat;
  allocate_sums(q, is_half ? padded(q.size(2), 64) : q.size(2), is_half ? padded(q.size(3), 64) : q.size(3));
  return {dq, dk, dv, Tensor()};
}
}  // namespace simaccel

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &simaccel::choose_attention)
}
