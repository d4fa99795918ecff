"""Adapters through peft: the base is frozen, the adapter is trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig, OFTConfig, PeftConfig
from peft.tuners.lokr.layer import LoKrLayer
from torch import Tensor, nn

from foretune.choices.method import Adapter, AnyAdapter, Lokr, LowRank
from foretune.core.draws import derive_seed
from foretune.core.errors import Refused
from foretune.hub.adapters import locate_adapter
from foretune.models.adapters import ADAPTER_NAME, adapter_state, read_adapter
from foretune.step.methods.base import AppliedMethod
from foretune.step.methods.peft_configs import WHOLE_RANK, peft_config
from foretune.step.methods.targets import check_targets
from foretune.step.methods.training_adapter import attach_training_adapter, switch_training_adapter
from foretune.step.methods.tuners import inject


class AppliedAdapter(AppliedMethod):
    """Adapters on the family's attention projections, or on the requested modules."""

    trains_base = False

    @property
    def adapter(self) -> AnyAdapter:
        assert isinstance(self.choice, Adapter)
        return self.choice

    @property
    def targets(self) -> tuple[str, ...]:
        return self.adapter.targets or self.family.adapter_targets

    def peft_config(self) -> PeftConfig:
        return peft_config(self.adapter, self.targets)

    def attach(self, seed: int, dtype: torch.dtype) -> None:
        check_targets(self.adapter, self.targets, self.family, self.denoiser)
        self.denoiser.requires_grad_(requires_grad=False)
        if self.adapter.training_adapter is not None:
            helper = locate_adapter(self.adapter.training_adapter)
            attach_training_adapter(self.family, self.denoiser, helper.path)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "init"))
            inject(self.peft_config(), self.denoiser, ADAPTER_NAME)
        switch_training_adapter(self.denoiser, on=True)
        self._freeze_without_gradient()
        for parameter in self.trained().values():
            parameter.data = parameter.data.to(dtype)
        if self.adapter.start_from is not None:
            self._start_from(self.adapter.start_from)

    def weights(self) -> dict[str, Tensor]:
        """Returns the adapter's tensors under peft's names."""
        return adapter_state(self.denoiser)

    def facts(self) -> dict[str, Any]:
        """Returns the resolved values of settings that the experiment left out."""
        followed: dict[str, Any] = {"targets": list(self.targets)}
        if isinstance(self.adapter, LowRank):
            followed["alpha"] = self.adapter.effective_alpha
        if isinstance(self.adapter, Lokr):
            followed["smaller_matrices"] = self._smaller_matrices()
        return followed

    def _smaller_matrices(self) -> list[str]:
        """Returns the distinct sizes as rows x columns: if the factor does not divide a side, peft uses another."""
        found: set[tuple[int, int]] = set()
        for module in self.denoiser.modules():
            if isinstance(module, LoKrLayer):
                if whole := dict(module.lokr_w1):
                    found |= {tuple(w.shape) for w in whole.values()}
                else:
                    found.add((module.lokr_w1_a[ADAPTER_NAME].shape[0], module.lokr_w1_b[ADAPTER_NAME].shape[1]))
        return [f"{rows} x {columns}" for rows, columns in sorted(found)]

    @torch.no_grad()
    def merged_layer(self, name: str, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors of one layer with the adapter merged into these of the base, in fp32.

        The layer itself stays as it is: it may be one without weights.
        """
        layer: Any = self.denoiser.get_submodule(name)
        held: nn.Module = layer.get_base_layer()
        before = dict(held._parameters)
        try:
            for key, tensor in base.items():
                held._parameters[key] = nn.Parameter(tensor.detach().to(torch.float32, copy=True), requires_grad=False)
            layer.float()
            layer.merge()
            return {key: tensor.detach() for key, tensor in held._parameters.items() if tensor is not None}
        finally:
            held._parameters.update(before)
            layer.merged_adapters.clear()

    @torch.no_grad()
    def _start_from(self, asked: str) -> None:
        """Loads an earlier adapter's weights; raises Refused if its kind, shape or model differs.

        On meta it only checks the adapter, and only if it is a folder or file that exists: a plan may be made on
        another machine, and downloads nothing.
        """
        on_meta = any(parameter.is_meta for parameter in self.trained().values())
        if on_meta and not Path(asked).expanduser().exists():
            return
        directory = locate_adapter(asked).path
        stored = read_adapter(self.family, directory)
        there, here = described(stored.config), described(self.peft_config())
        if wrong := {key for key in there.keys() | here.keys() if there.get(key) != here.get(key)}:
            raise Refused(
                f"method.start_from: {directory} holds {_text(there, wrong)}; the experiment asks for "
                f"{_text(here, wrong)}. Change these settings to match, or start from another adapter."
            )
        own = self.weights()
        misfits = set(own) ^ set(stored.weights)
        misfits |= {
            name for name in own.keys() & stored.weights.keys() if own[name].shape != stored.weights[name].shape
        }
        if misfits:
            raise Refused(
                f"method.start_from: {directory} was made for another model than this {self.family.name}: "
                f"{min(misfits)} and {len(misfits) - 1} more of its tensors do not fit."
            )
        if not on_meta:
            for name, tensor in own.items():
                tensor.copy_(stored.weights[name])


def described(config: PeftConfig) -> dict[str, Any]:
    """Returns what must match to start one adapter from another, in an experiment's terms."""
    targets = config.target_modules if not isinstance(config.target_modules, str) else [config.target_modules]
    facts: dict[str, Any] = {"targets": sorted(targets or ())}
    if isinstance(config, OFTConfig):
        return {"kind": "oft", **facts, "block_size": config.oft_block_size}
    if isinstance(config, LoraConfig):
        kind = "dora" if config.use_dora else "rslora" if config.use_rslora else "lora"
        return {"kind": kind, **facts, "rank": config.r, "alpha": config.lora_alpha}
    if isinstance(config, LoKrConfig):
        facts |= {"factor": config.decompose_factor, "full_matrix": config.r == WHOLE_RANK}
        if config.r == WHOLE_RANK:
            return {"kind": "lokr", **facts, "alpha / rank": config.alpha / WHOLE_RANK}
        return {"kind": "lokr", **facts, "rank": config.r, "alpha": config.alpha}
    assert isinstance(config, LoHaConfig), "no other kind is written"
    return {"kind": "loha", **facts, "rank": config.r, "alpha": config.alpha}


def _text(facts: dict[str, Any], keys: set[str]) -> str:
    shown = {**({"kind": facts["kind"]} if "kind" not in keys else {}), **{k: facts[k] for k in facts if k in keys}}
    return ", ".join(f"{key} {','.join(value) if isinstance(value, list) else value}" for key, value in shown.items())
