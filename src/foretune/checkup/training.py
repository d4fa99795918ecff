"""Products, convolutions, training steps, adapters and optimizers."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

from foretune.accelerator import page_locked
from foretune.accelerator.copies import moved, to_host, wait_for_copies
from foretune.checkup.finding import Check
from foretune.choices.optimizers import OPTIMIZER_SPECS, OptimizerSpec
from foretune.choices.training import Optimizer

_MOST_OF_THE_LOSS = 0.99
"""An optimizer that leaves more of it than this share does nothing."""


def _product(dtype: torch.dtype) -> Callable[[torch.device], str]:
    def run(device: torch.device) -> str:
        a = torch.randn(256, 256, device=device)
        exact, low = a @ a.T, (a.to(dtype) @ a.T.to(dtype)).float()
        error = float((low - exact).abs().max() / exact.abs().max())
        assert error < 0.05, f"{error:.1%} off the fp32 result"  # noqa: PLR2004 - far above rounding, far below wrong
        return f"{error:.2g} relative error against fp32"

    return run


def _convolution(device: torch.device) -> str:
    layer = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU()).to(device)
    layer(torch.randn(2, 3, 16, 16, device=device)).sum().backward()
    return "forward and backward"


def _fallen(losses: Sequence[float]) -> str:
    text = f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps"
    assert losses[-1] < _MOST_OF_THE_LOSS * losses[0], f"it does not learn: {text}"
    return text


def _train_step(dtype: torch.dtype) -> Callable[[torch.device], str]:
    """Forward under autocast, loss scaling where the type needs it, backward, clipping, AdamW."""

    def run(device: torch.device) -> str:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        x = torch.randn(64, 32, device=device)
        losses = []
        for _ in range(10):
            with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
                loss = functional.mse_loss(model(x).float(), x)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return _fallen(losses)

    return run


def _checkpointing(device: torch.device) -> str:
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(16, 16).to(device)
    x = torch.randn(4, 16, device=device, requires_grad=True)
    (plain,) = torch.autograd.grad(layer(x).sin().sum(), x)
    again = checkpoint(lambda value: layer(value).sin().sum(), x, use_reentrant=False)
    assert isinstance(again, torch.Tensor)
    (recomputed,) = torch.autograd.grad(again, x)
    assert torch.equal(plain, recomputed), "recomputed gradients differ"
    return "recomputed gradients are equal"


def _lora(device: torch.device) -> str:
    from peft import LoraConfig, inject_adapter_in_model

    model = nn.Sequential(nn.Linear(16, 16)).requires_grad_(requires_grad=False)
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["0"]), model)
    model.to(device)(torch.randn(2, 16, device=device)).sum().backward()
    trained = [name for name, p in model.named_parameters() if p.grad is not None]
    assert trained, "no adapter received a gradient"
    return f"{len(trained)} adapter tensors received gradients"


def _optimizer(spec: OptimizerSpec) -> Callable[[torch.device], str]:
    """Steps of one of foretune's optimizers on a small layer: one that looks for its learning rate needs more."""

    def run(device: torch.device) -> str:
        from foretune.step.optimizing import build_optimizer

        torch.manual_seed(0)
        layer = nn.Linear(64, 64).to(device)
        choice = Optimizer(kind=spec.name, lr=spec.lr_or(1e-2))
        optimizer = build_optimizer(choice, layer.parameters())
        x = torch.randn(32, 64, device=device)
        losses = []
        for _ in range(100 if spec.finds_lr else 10):
            loss = functional.mse_loss(layer(x), x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return _fallen(losses)

    return run


def _channels_last(device: torch.device) -> str:
    from foretune.step.levers.channels_last import apply_channels_last

    layer = nn.Conv2d(4, 8, 3, padding=1).to(device)
    apply_channels_last(layer)
    x = torch.randn(2, 4, 16, 16, device=device)
    out = layer(x.to(memory_format=torch.channels_last))
    out.sum().backward()
    assert out.is_contiguous(memory_format=torch.channels_last), "the layout was not kept"
    return "the layout is kept"


def _pinned_copy(device: torch.device) -> str:
    """What offloading and the loader rely on: copies from page-locked memory that the host does not wait for."""
    host = page_locked.locked(torch.arange(1 << 16, dtype=torch.float32), device)
    assert page_locked.is_locked(host), f"the driver refuses to page-lock host memory: {page_locked.refusal()}"
    back = to_host(moved(host, device))
    wait_for_copies(device)
    assert torch.equal(host, back), "what came back is not what was sent"
    return "256 KiB there and back"


CHECKS = (
    Check("training", "matrix product fp32", _product(torch.float32), needed=True),
    Check("training", "matrix product bf16", _product(torch.bfloat16)),
    Check("training", "matrix product fp16", _product(torch.float16)),
    Check("training", "convolution", _convolution, needed=True),
    Check("training", "convolution channels last", _channels_last),
    Check("training", "training step fp32", _train_step(torch.float32), needed=True),
    Check("training", "training step bf16", _train_step(torch.bfloat16)),
    Check("training", "training step fp16", _train_step(torch.float16)),
    Check("training", "gradient checkpointing", _checkpointing, needed=True),
    Check("training", "LoRA", _lora, needed=True),
    Check("training", "copies from page-locked memory", _pinned_copy, device_types=("cuda",)),
    *(
        Check("training", f"optimizer {spec.name}", _optimizer(spec))
        for spec in OPTIMIZER_SPECS.values()
        if spec.is_in_doctor
    ),
)
