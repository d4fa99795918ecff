#pragma once
#include "settings.h"

namespace simaccel {
using FlashResult = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

FlashResult flash_attention(const Tensor&, const Tensor&, const Tensor&, double, bool, bool, std::optional<double>);
std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                            const Tensor&, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double,
                                                            bool, const Tensor&, const Tensor&, std::optional<double>);
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                                               bool, double, bool, std::optional<double>);
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                                        const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                                        const Tensor&, double, std::array<bool, 4>, bool,
                                                                        std::optional<double>);

// By all conditions of CUDA's choice that depend on shapes; computes nothing.
int64_t choose_attention_dry(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, bool enable_gqa);
}  // namespace simaccel
