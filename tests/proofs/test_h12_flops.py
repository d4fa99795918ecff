"""H12: FLOPs of a step, from its trace, against torch's counter on the step that is really run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from foretune.config.reading import Asked, understand
from foretune.measure.step_flops import StepFlops, step_flops
from foretune.measure.synthetic import synthetic_batches
from foretune.models.locating import open_family
from foretune.stats.utilisation import ImpossibleSpeed, utilisation
from foretune.step.building import assemble, build_step
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.rotation import how_to_repeat, places, turn

pytestmark = pytest.mark.proof

_LORA = {"kind": "lora", "rank": 8}
_FULL = {"kind": "full"}
NETS: tuple[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]], ...] = (
    ("flux", {}, _LORA, {"batch_size": 2}),
    ("ddpm", {}, _FULL, {"batch_size": 4}),
    ("sd3", {}, _FULL, {"batch_size": 1, "gradient_accumulation": 2}),
    ("flux", {"num_layers": 3, "num_single_layers": 5}, _FULL, {"batch_size": 1}),
    ("ddpm", {"layers_per_block": 3}, _FULL, {"batch_size": 2}),
    ("sd3", {"num_layers": 6}, _LORA, {"batch_size": 2}),
    ("flux", {"attention_head_dim": 32, "axes_dims_rope": [8, 12, 12]}, _LORA, {"batch_size": 3}),
    ("ddpm", {"block_out_channels": [64, 64, 64, 64]}, _FULL, {"batch_size": 1}),
    ("sd3", {"num_attention_heads": 6, "caption_projection_dim": 144}, _FULL, {"batch_size": 2}),
    ("flux", {"num_attention_heads": 4}, _FULL, {"batch_size": 2, "precision": "bf16"}),
    ("ddpm", {"block_out_channels": [32, 32, 96, 96]}, _FULL, {"batch_size": 2, "precision": "bf16"}),
    (
        "sd3",
        {"attention_head_dim": 48, "caption_projection_dim": 96},
        {"kind": "lora", "rank": 32},
        {"batch_size": 1, "precision": "bf16"},
    ),
)


def network(folder: Path, base: Path, changes: dict[str, Any]) -> Path:
    """A folder that describes a network, without weights: the tiny one's with another configuration."""
    for path in base.rglob("*.json"):
        if path.name.endswith(("config.json", "model_index.json")):
            target = folder / path.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    part = next(folder / name for name in ("transformer", "unet") if (folder / name).is_dir())
    config = json.loads((part / "config.json").read_text()) | changes
    (part / "config.json").write_text(json.dumps(config))
    return folder


def asked_for(folder: Path, method: dict[str, Any], train: dict[str, Any], checkpointing: float = 0.0) -> Asked:
    return understand(
        {
            "model": str(folder),
            "method": method,
            "data": {"kind": "shapes", "resolution": 32, "max_text_tokens": 32},
            "train": {"steps": 1, "precision": "fp32", **train},
            "levers": {"gradient_checkpointing": checkpointing},
        },
        source="test",
    )


def counted(asked: Asked, *, knows_attention: bool = True) -> int:
    """What torch's counter sees of one real step. Of a CPU's attention it knows nothing, so that is added."""
    family = open_family(Path(asked.experiment.model))
    loader: Any = family.denoiser_class()
    denoiser = loader.from_config(dict(family.architecture.denoiser))
    step = build_step(asked.experiment, family, assemble(asked.experiment, family, denoiser), torch.device("cpu"))
    batches = synthetic_batches(asked.experiment, family)
    accumulation = asked.experiment.train.gradient_accumulation
    with FlopCounterMode(display=False, custom_mapping=_ATTENTION if knows_attention else {}) as counter:
        step(0, 1e-4, [batches[number] for number in range(accumulation)], accumulation)
    return int(counter.get_total_flops())


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


def test_h12_flops_of_small_nets(
    tmp_path: Path, tiny_models: TinyModels, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    errors, blind, today = [], [], turn()
    # The next three in the next turn: one of each family, and all in four turns.
    chosen = [place % len(NETS) for place in places(today, proof_size(12, 3))]
    for number in chosen:
        family, changes, method, train = NETS[number]
        folder = network(tmp_path / str(number), tiny_models.path(family), changes)
        asked = asked_for(folder, method, train)
        found, truth = step_flops(asked), counted(asked)
        assert found.model == found.hardware
        errors.append(abs(found.model / truth - 1))
        blind.append(abs(counted(asked, knows_attention=False) / truth - 1))
    assert max(errors) <= 0.01, errors
    # The control: a count that leaves attention out is seen to be wrong.
    assert max(blind) > 0.01
    report_figure(
        f"{len(errors)} nets ({', '.join(map(str, chosen))}), largest error {max(errors):.3%}; without attention "
        f"{max(blind):.1%}; {how_to_repeat(today)}"
    )


def test_h12_checkpointing_changes_hardware_utilisation_only(
    tmp_path: Path, tiny_models: TinyModels, report_figure: Callable[[str], None]
) -> None:
    folder = network(tmp_path / "net", tiny_models.path("flux"), {"num_layers": 2, "num_single_layers": 4})
    plain, half, whole = (asked_for(folder, _LORA, {"batch_size": 2}, share) for share in (0.0, 0.5, 1.0))
    found = {name: step_flops(asked) for name, asked in (("plain", plain), ("half", half), ("whole", whole))}
    assert found["plain"].model == found["half"].model == found["whole"].model
    assert found["plain"].hardware < found["half"].hardware < found["whole"].hardware
    for name, asked in (("half", half), ("whole", whole)):
        assert found[name].hardware == pytest.approx(counted(asked), rel=0.01), name
    shares = {name: _shares(flops) for name, flops in found.items()}
    assert shares["whole"][0] == shares["plain"][0]
    assert shares["whole"][1] > 1.2 * shares["plain"][1]
    report_figure(
        f"hardware FLOPs of a checkpointed step: {found['whole'].hardware / found['plain'].hardware:.2f} times"
    )


def _shares(flops: StepFlops) -> tuple[float, float]:
    return utilisation(flops.model, 1.0, 1e12, "test"), utilisation(flops.hardware, 1.0, 1e12, "test")


def test_h12_more_than_the_peak_is_an_error() -> None:
    assert utilisation(1e12, 1.0, 1e12, "a data sheet") == 1.0
    with pytest.raises(ImpossibleSpeed, match=r"101%.*a data sheet"):
        utilisation(1.01e12, 1.0, 1e12, "a data sheet")
