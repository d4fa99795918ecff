"""peft's builders of adapters, with what a training step that is planned and resumed needs of them."""

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
from peft.tuners.tuners_utils import BaseTuner
from torch import Tensor, nn

from foretune.step.methods.kronecker import KroneckerLinear


class _NoDraws:
    """A layer that is always as in evaluation.

    In training peft's LoHa and LoKr draw a number at each layer and pass, even where nothing is to be dropped: it
    would come from a generator that nobody seeded, and on fake tensors it has no value to ask for. Nothing else in
    these layers depends on the mode; dropout is refused for them.
    """

    def train(self, mode: bool = True) -> Any:
        return super().train(mode=False)  # type: ignore[misc]


class _LoHaLinear(_NoDraws, LoHaLinear):  # type: ignore[misc]
    """A linear layer with LoHa beside it."""

    def get_delta_weight(self, adapter_name: str, *, apply_rank_dropout: bool = False) -> Tensor:
        """As in peft, but without asking the base for its shape, which would widen a quantised one at each pass."""
        assert not apply_rank_dropout
        weights = (part[adapter_name] for part in (self.hada_w1_a, self.hada_w1_b, self.hada_w2_a, self.hada_w2_b))
        delta: Tensor = make_weight(*weights, scale=torch.tensor(self.scaling[adapter_name]))
        return delta


class _LoHaConv2d(_NoDraws, LoHaConv2d):  # type: ignore[misc]
    """A convolution with LoHa beside it."""


class _LoKrConv2d(_NoDraws, LoKrConv2d):  # type: ignore[misc]
    """A convolution with LoKr beside it."""


class _LoHaTuner(LoHaModel):  # type: ignore[misc]
    layers_mapping = {nn.Conv2d: _LoHaConv2d, nn.Linear: _LoHaLinear}  # noqa: RUF012 - as in peft


class _LoKrTuner(LoKrModel):  # type: ignore[misc]
    layers_mapping = {nn.Conv2d: _LoKrConv2d, nn.Linear: KroneckerLinear}  # noqa: RUF012 - as in peft


_OWN: dict[PeftType, type[BaseTuner]] = {PeftType.LOHA: _LoHaTuner, PeftType.LOKR: _LoKrTuner}


def inject(config: PeftConfig, denoiser: nn.Module, adapter_name: str) -> None:
    """Puts an adapter beside the layers that its settings name, in place."""
    assert config.peft_type is not None
    kind = PeftType(config.peft_type)
    tuner = _OWN.get(kind, PEFT_TYPE_TO_TUNER_MAPPING[kind])
    tuner(denoiser, config, adapter_name=adapter_name)
