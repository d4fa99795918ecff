"""peft's adapter builders, changed where planning and resuming need it."""

from typing import Any

import torch
from peft import PeftConfig, PeftType
from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.loha import LoHaModel
from peft.tuners.loha.layer import Conv2d as LoHaConv2d
from peft.tuners.loha.layer import Linear as LoHaLinear
from peft.tuners.loha.layer import make_weight
from peft.tuners.lokr import LoKrModel
from peft.tuners.lokr.layer import Conv2d as LoKrConv2d
from peft.tuners.lora import LoraConfig, LoraModel
from peft.tuners.lora.layer import dispatch_default
from peft.tuners.tuners_utils import BaseTuner
from torch import Tensor, nn

from foretune.step.methods.kronecker import KroneckerLinear


class _NoDraws:
    """A layer that always stays in evaluation mode.

    In training mode peft's LoHa and LoKr draw a number per layer and forward pass, even if nothing is dropped. It comes
    from an unseeded generator, and has no value on fake tensors. Nothing else in these layers depends on the mode, and
    dropout is refused for them.
    """

    def train(self, mode: bool = True) -> Any:
        return super().train(mode=False)  # type: ignore[misc]


class _LoHaLinear(_NoDraws, LoHaLinear):  # type: ignore[misc]
    """A linear layer with LoHa."""

    def get_delta_weight(self, adapter_name: str, *, apply_rank_dropout: bool = False) -> Tensor:
        """Same as in peft, but does not read the shape from the base weight, which would dequantise it in each pass."""
        assert not apply_rank_dropout
        weights = (part[adapter_name] for part in (self.hada_w1_a, self.hada_w1_b, self.hada_w2_a, self.hada_w2_b))
        delta: Tensor = make_weight(*weights, scale=torch.tensor(self.scaling[adapter_name]))
        return delta


class _LoHaConv2d(_NoDraws, LoHaConv2d):  # type: ignore[misc]
    """A convolution with LoHa."""


class _LoKrConv2d(_NoDraws, LoKrConv2d):  # type: ignore[misc]
    """A convolution with LoKr."""


class _LoHaTuner(LoHaModel):  # type: ignore[misc]
    layers_mapping = {nn.Conv2d: _LoHaConv2d, nn.Linear: _LoHaLinear}  # noqa: RUF012 - as in peft


class _LoKrTuner(LoKrModel):  # type: ignore[misc]
    layers_mapping = {nn.Conv2d: _LoKrConv2d, nn.Linear: KroneckerLinear}  # noqa: RUF012 - as in peft


class _LoraTuner(LoraModel):  # type: ignore[misc]
    @staticmethod
    def _create_new_module(lora_config: LoraConfig, adapter_name: str, target: nn.Module, **kwargs: Any) -> nn.Module:
        """Same as in peft for layers of torch, of which ours with quantised weights are subclasses.

        peft first looks for layers of the quantisation libraries; it imports bitsandbytes for that, which takes
        seconds.
        """
        layer: nn.Module | None = dispatch_default(target, adapter_name, config=lora_config, **kwargs)
        assert layer is not None, f"targets are checked before, but {target} is of another kind"
        return layer


_OWN: dict[PeftType, type[BaseTuner]] = {
    PeftType.LOHA: _LoHaTuner,
    PeftType.LOKR: _LoKrTuner,
    PeftType.LORA: _LoraTuner,
}


def inject(config: PeftConfig, denoiser: nn.Module, adapter_name: str) -> None:
    """Attaches an adapter in place to the layers that its configuration names."""
    assert config.peft_type is not None
    kind = PeftType(config.peft_type)
    tuner = _OWN.get(kind, PEFT_TYPE_TO_TUNER_MAPPING[kind])
    tuner(denoiser, config, adapter_name=adapter_name)
