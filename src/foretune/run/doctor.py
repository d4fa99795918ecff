"""Does this machine do what a training needs? Each operation is executed, on each device present."""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from foretune.run.devices import available_devices


@dataclass(frozen=True)
class Finding:
    """One operation on one device."""

    device: str
    operation: str
    works: bool
    needed: bool
    """Whether every training needs it; others are named so that one knows what not to ask for."""
    seconds: float
    detail: str


@dataclass(frozen=True)
class _Check:
    operation: str
    run: Callable[[torch.device], str]
    needed: bool = True


def examine() -> Iterator[Finding]:
    """Every check on every device, as they are done."""
    for device in available_devices():
        for check in _CHECKS:
            yield _examined(check, device)
    for check in _HOST_CHECKS:
        yield _examined(check, torch.device("cpu"), shown="host")


def _examined(check: _Check, device: torch.device, shown: str | None = None) -> Finding:
    started_s = time.perf_counter()
    try:
        detail = check.run(device)
        works = True
    except Exception as error:  # noqa: BLE001 - whatever a device or a library can raise is the finding
        first = str(error).strip().splitlines()
        detail, works = f"{type(error).__name__}: {first[0] if first else 'no reason given'}", False
    return Finding(shown or str(device), check.operation, works, check.needed, time.perf_counter() - started_s, detail)


def _product(dtype: torch.dtype) -> Callable[[torch.device], str]:
    def run(device: torch.device) -> str:
        a = torch.randn(256, 256, device=device)
        exact, low = a @ a.T, (a.to(dtype) @ a.T.to(dtype)).float()
        error = float((low - exact).abs().max() / exact.abs().max())
        assert error < 0.05, f"{error:.1%} off the fp32 result"  # noqa: PLR2004 - far above rounding, far below wrong
        return f"{error:.2g} relative error against fp32"

    return run


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
        assert losses[-1] < losses[0], f"the loss rose from {losses[0]:.3f} to {losses[-1]:.3f}"
        return f"loss {losses[0]:.3f} to {losses[-1]:.3f} in 10 steps"

    return run


def _attention(device: torch.device) -> str:
    q = torch.randn(2, 4, 64, 32, device=device, requires_grad=True)
    out = functional.scaled_dot_product_attention(q, q, q)
    weights = torch.softmax(q @ q.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
    error = float((out - weights @ q).abs().max().detach())
    out.sum().backward()
    assert error < 1e-2, f"{error:.2g} off the plain formula"  # noqa: PLR2004 - TF32 rounding stays below
    return f"{error:.2g} off the plain formula"


def _convolution(device: torch.device) -> str:
    layer = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU()).to(device)
    layer(torch.randn(2, 3, 16, 16, device=device)).sum().backward()
    return "forward and backward"


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


def _checkpoint_on_disk(device: torch.device) -> str:  # noqa: ARG001 - the disk is the host's
    from foretune.run.checkpoints import Checkpoint, CheckpointStore

    with tempfile.TemporaryDirectory(dir=".") as directory:
        store = CheckpointStore(Path(directory), keep=1)
        store.write(Checkpoint(1, {"weights": {"w": torch.arange(10.0)}}, {}))
        found = store.read_newest(["weights"])
    assert found is not None, "nothing was read back"
    return "written, flushed, read back and verified in this folder"


def _pipelines(device: torch.device) -> str:  # noqa: ARG001 - imports only
    import diffusers
    import transformers

    for name in ("FluxPipeline", "StableDiffusion3Pipeline", "DDPMPipeline"):
        getattr(diffusers, name)
    return f"diffusers {diffusers.__version__}, transformers {transformers.__version__}"


_CHECKS = (
    _Check("matrix product fp32", _product(torch.float32)),
    _Check("matrix product bf16", _product(torch.bfloat16), needed=False),
    _Check("matrix product fp16", _product(torch.float16), needed=False),
    _Check("attention", _attention),
    _Check("convolution", _convolution),
    _Check("training step fp32", _train_step(torch.float32)),
    _Check("training step bf16", _train_step(torch.bfloat16), needed=False),
    _Check("training step fp16", _train_step(torch.float16), needed=False),
    _Check("gradient checkpointing", _checkpointing),
    _Check("LoRA", _lora),
)
_HOST_CHECKS = (
    _Check("pipelines import", _pipelines),
    _Check("checkpoint on disk", _checkpoint_on_disk),
)
