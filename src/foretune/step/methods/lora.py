"""LoRA through peft: the base is frozen, small matrices beside it are trained."""

import torch
from peft import LoraConfig, inject_adapter_in_model

from foretune.choices.method import Lora
from foretune.core.draws import derive_seed
from foretune.core.errors import Refused
from foretune.models.adapters import ADAPTER_NAME
from foretune.step.methods.base import AppliedMethod


class AppliedLora(AppliedMethod):
    """Adapters on the family's attention projections, or on the modules that were asked for."""

    trains_base = False

    @property
    def _lora(self) -> Lora:
        assert isinstance(self.choice, Lora)
        return self.choice

    @property
    def targets(self) -> tuple[str, ...]:
        return self._lora.targets or self.family.adapter_targets

    def peft_config(self) -> LoraConfig:
        # peft writes alpha as given; a whole number stays one, which older readers insist on.
        alpha = self._lora.effective_alpha
        return LoraConfig(
            r=self._lora.rank,
            lora_alpha=int(alpha) if alpha == int(alpha) else alpha,
            lora_dropout=self._lora.dropout,
            target_modules=list(self.targets),
            init_lora_weights=True,
        )

    def attach(self, seed: int, dtype: torch.dtype) -> None:
        self._check_targets()
        self.denoiser.requires_grad_(requires_grad=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "init"))
            inject_adapter_in_model(self.peft_config(), self.denoiser, adapter_name=ADAPTER_NAME)
        for parameter in self.trained().values():
            parameter.data = parameter.data.to(dtype)

    def _check_targets(self) -> None:
        names = [name for name, module in self.denoiser.named_modules() if isinstance(module, torch.nn.Linear)]
        for target in self.targets:
            if not any(name == target or name.endswith("." + target) for name in names):
                ends = sorted(
                    {".".join(name.split(".")[-2:]) if name[-1].isdigit() else name.split(".")[-1] for name in names}
                )
                raise Refused(
                    f"method.targets: no linear layer of this {self.family.name} model is named {target!r}. "
                    f"Its linear layers end in: {', '.join(ends)}."
                )
