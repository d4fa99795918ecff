"""Every denoiser of the catalogue goes through the project's own training step on fake tensors."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretune import catalog
from foretune.choices.experiment import Experiment
from foretune.models import Family
from foretune.models.locating import family_from_catalogue
from foretune.trace.recorder import Allocation, Recording
from foretune.trace.tracing import Numerics, StepSizes, TracedStep, trace_step

RANK = 16
DEPTH = 2
QKVO = ("to_q", "to_k", "to_v", "to_out.0")
# Layers of a UNet's attention blocks: one number for all, or one for each resolution.
LAYERS = "transformer_layers_per_block"


def shallow(name: str) -> Family:
    """The model with two blocks of each kind; a UNet with two layers at each resolution.

    `proofs/test_h20_full_depth.py` records models at their full depth.
    """
    family = family_from_catalogue(name)
    kinds, config = family.block_kinds(), family.architecture.denoiser
    if kinds:
        return family.with_depths(tuple(min(DEPTH, kind.count) for kind in kinds))
    if isinstance(config.get(LAYERS), list | tuple):
        config = {**config, LAYERS: [min(DEPTH, number) for number in config[LAYERS]]}
        return type(family)(replace(family.architecture, denoiser=config))
    return family


def small_sizes(family: Family, batch_size: int = 1) -> StepSizes:
    side_px = family.size_multiple_px() * 4
    return StepSizes(
        batch_size=batch_size,
        height_px=side_px,
        width_px=side_px,
        num_text_tokens=family.default_text_tokens,
        num_frames=min(9, family.default_num_frames()),
    )


def traced(family: Family, method: str, checkpointing: float, numerics: Numerics = "cuda") -> TracedStep:
    experiment = Experiment.model_validate(
        {
            "model": "any",
            "method": {"kind": "lora", "rank": RANK} if method == "lora" else {"kind": method},
            "data": {"kind": "shapes"},
            "train": {"steps": 2, "precision": "bf16"},
            "levers": {"gradient_checkpointing": checkpointing},
        }
    )
    return trace_step(experiment, family, small_sizes(family), numerics)


def peak_bytes(recording: Recording) -> int:
    live = peak = 0
    sizes: dict[int, int] = {}
    for event in recording.events:
        if isinstance(event, Allocation):
            sizes[event.number] = event.num_bytes
            live += event.num_bytes
            peak = max(peak, live)
        else:
            live -= sizes.pop(event.number)
    return peak


def blocks_at_work(recording: Recording, phase: str) -> set[int]:
    places = (operation.place for operation in recording.operations if operation.place.phase == phase)
    return {place.block for place in places if place.block is not None}


def bytes_of(step: TracedStep, category: str) -> int:
    allocated = (event for event in step.recording.events if isinstance(event, Allocation))
    return sum(event.num_bytes for event in allocated if step.categories.get(event.number) == category)


def lora_size(family: Family, denoiser: nn.Module) -> int:
    """Adapter parameters for each unit of rank."""
    linears = ((name, m) for name, m in denoiser.named_modules() if isinstance(m, nn.Linear))
    ends = tuple("." + target for target in family.adapter_targets)
    return sum(layer.in_features + layer.out_features for name, layer in linears if f".{name}".endswith(ends))


def weight_bytes(denoiser: nn.Module) -> int:
    """Two bytes for each weight, four for those that the class keeps in fp32, and the tables it computes."""
    kept = set(getattr(type(denoiser), "_keep_in_fp32_modules", None) or ())

    def width(name: str) -> int:
        return 4 if kept & set(name.split(".")) else 2

    stored = set(denoiser.state_dict())
    tables = (b.numel() * (width(n) if n in stored else b.element_size()) for n, b in denoiser.named_buffers())
    return sum(p.numel() * width(n) for n, p in denoiser.named_parameters()) + sum(tables)


def watch_predictions(family: Family, monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Size, torch.Size]]:
    """Shapes of what every prediction is given and of what it answers, as they come."""
    seen: list[tuple[torch.Size, torch.Size]] = []
    original = family.predict

    def predict(denoiser: nn.Module, noisy: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        predicted = original(denoiser, noisy, *args, **kwargs)
        seen.append((noisy.shape, predicted.shape))
        return predicted

    monkeypatch.setattr(family, "predict", predict)
    return seen


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", sorted(catalog.denoisers()))
def test_lora_with_checkpointing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = shallow(name)
    shapes = watch_predictions(family, monkeypatch)
    denoiser = family.denoiser_on_meta(torch.bfloat16)
    sizes = small_sizes(family)
    step = traced(family, "lora", 1.0)

    latent = family.latent_shape(sizes.height_px, sizes.width_px, sizes.num_frames)
    assert set(shapes) == {(torch.Size((1, *latent)),) * 2}
    frozen = bytes_of(step, "frozen weights")
    assert frozen == weight_bytes(denoiser)
    assert step.num_trained_params == RANK * lora_size(family, denoiser)
    assert bytes_of(step, "trained weights") == step.num_trained_params * 4
    assert bytes_of(step, "gradients") == step.num_trained_params * 4
    assert bytes_of(step, "optimizer state") >= step.num_trained_params * 8
    # Weights, adapters, their two moments and, after the backward pass, their gradients: at least.
    assert peak_bytes(step.recording) > frozen + step.num_trained_params * 16
    phases = {event.place.phase for event in step.recording.events}
    assert {"forward", "backward", "optimizer"} <= phases
    every = set(range(len(family.blocks(denoiser))))
    forward, backward = (blocks_at_work(step.recording, phase) for phase in ("forward", "backward"))
    assert forward == every
    # Nothing before the first adapter has a backward pass: the first layers of a UNet have no attention.
    assert backward == every if family.block_kinds() else backward == set(range(min(backward), len(every)))


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", sorted(catalog.denoisers()))
def test_full_depth_is_the_catalogued_model(name: str) -> None:
    row, family = catalog.denoiser(name), family_from_catalogue(name)
    kinds = family.block_kinds()
    again = family.with_depths(tuple(kind.count for kind in kinds)) if kinds else family
    denoiser = again.denoiser_on_meta(torch.bfloat16)
    assert sum(p.numel() for p in denoiser.parameters()) == row.num_params
    assert bool(kinds) == (row.num_blocks is not None)
    assert row.lora_params_per_rank is not None
    if family.adapter_targets == QKVO:
        assert lora_size(family, denoiser) == row.lora_params_per_rank.attn_qkvo
    blocks = family.blocks(denoiser)
    assert len({id(block) for block in blocks}) == len(blocks)
    assert set(map(id, blocks)) <= set(map(id, denoiser.modules()))
    if kinds:
        assert len(blocks) == sum(kind.count for kind in kinds)
        lists = dict.fromkeys(_module_list(kind.name) for kind in kinds)
        named = [block for name in lists for block in denoiser.get_submodule(name).children()]
        assert [id(block) for block in blocks] == [id(block) for block in named]


def _module_list(kind: str) -> str:
    return "transformer_blocks" if kind == "dual_attention" else kind


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("name", "method", "checkpointing", "numerics"),
    [
        ("flux.2-dev", "lora", 0.0, "cuda"),
        ("hidream-i1", "lora", 0.5, "cuda"),
        ("hunyuanvideo-1.5", "full", 0.0, "cuda"),
        ("krea-2", "lora", 0.0, "cpu"),
        ("lumina-image-2.0", "full", 1.0, "cuda"),
        ("mochi-1", "full", 0.0, "cpu"),
        ("qwen-image", "full", 1.0, "cpu"),
        ("sana-1.6b", "full", 0.0, "cuda"),
        ("sd1.5-unet", "full", 0.0, "cuda"),
        ("wan2.1-i2v-14b", "full", 1.0, "cuda"),
        ("z-image", "lora", 0.0, "cuda"),
    ],
)
def test_other_methods_and_levers(name: str, method: str, checkpointing: float, numerics: Numerics) -> None:
    family = shallow(name)
    step = traced(family, method, checkpointing, numerics)
    peak = peak_bytes(step.recording)
    if method == "full":
        parameters = dict(family.denoiser_on_meta(torch.float32).named_parameters())
        assert step.num_params == sum(p.numel() for p in parameters.values())
        num_unused = sum(p.numel() for name, p in parameters.items() if name.startswith(family.without_gradient()))
        assert step.num_trained_params == step.num_params - num_unused
        assert peak > step.num_trained_params * 16 + num_unused * 4
    else:
        assert peak > bytes_of(step, "frozen weights") + step.num_trained_params * 16


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", ["chroma", "cogvideox-5b", "hidream-i1", "z-image"])
def test_checkpointing_saves_activations(name: str) -> None:
    family = shallow(name)
    kept, recomputed = (peak_bytes(traced(family, "lora", share).recording) for share in (0.0, 1.0))
    assert recomputed < kept
