"""The shipped model draws what captions say that it has not seen, and learns a style it has not seen in minutes."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foretune.choices.data import ShapesStyle
from foretune.choices.model import resolve_model
from foretune.config.reading import understand
from foretune.data.shapes_reader import style_score
from foretune.data.sources.shapes import captions_shown
from foretune.stats.intervals import mean_interval
from tests.conftest import ProofSize

pytestmark = pytest.mark.proof

MODEL = "foretune-shapes"
MOST_SHIPPED_BYTES = 5_000_000
STYLE: ShapesStyle = "framed"
CONFIDENCE = 0.95


def share_interval(num_right: int, num: int) -> tuple[float, float]:
    """Wilson's interval of a share."""
    z, share = 1.96, num_right / num
    middle = (share + z * z / (2 * num)) / (1 + z * z / num)
    reach = z * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num)) / (1 + z * z / num)
    return middle - reach, middle + reach


@pytest.fixture(scope="module")
def shipped() -> Path:
    folder = resolve_model(MODEL).folder
    assert folder is not None
    return folder


def test_what_ships_is_small_and_says_how_it_was_made(shipped: Path) -> None:
    files = [path for path in shipped.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST_SHIPPED_BYTES
    assert {"recipe.yaml", "record.json", "README.md", "model_index.json"} <= {path.name for path in files}
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".yaml", ".md"}


def test_images_show_captions_that_were_not_seen(
    shipped: Path, proof_size: ProofSize, report_figure: Callable[[str], None], tmp_path: Path
) -> None:
    import torch

    from foretune.models.locating import open_family
    from tools.small_model.checking import check_captions, read_captions

    found = check_captions(shipped, num_images=proof_size(402, 40), num_steps=28)
    low, high = share_interval(round(found.all_right * found.num_images), found.num_images)

    # The control: the same parts and captions, with a denoiser that has learnt nothing.
    family = open_family(shipped)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        untrained = family.denoiser_class().from_config(family.load_denoiser(shipped, torch.float32).config)
    pipeline = family.load_pipeline(shipped, torch.float32, transformer=untrained)
    control = read_captions(family, pipeline, num_images=proof_size(134, 20), num_steps=28)

    by_attribute = ", ".join(f"{name} {share:.1%}" for name, share in found.by_attribute.items())
    report_figure(
        f"unseen captions: {found.all_right:.1%} of {found.num_images} ({low:.1%} to {high:.1%}); {by_attribute}; "
        f"against other captions {found.shuffled_right:.1%}; untrained {control.all_right:.1%} of {control.num_images}"
    )
    assert found.all_right >= proof_size(90, 80) / 100
    assert found.shuffled_right <= 0.05
    assert control.all_right <= 0.05


def trained_adapter(work: Path, style: ShapesStyle, num_steps: int) -> tuple[Path, float]:
    """A LoRA of the shipped model on images of a style, and the processor seconds it took in all."""
    from foretune.core.observer import Observer
    from foretune.training.train import train

    asked = understand(
        {
            "name": style,
            "model": MODEL,
            "method": {"kind": "lora", "rank": 16},
            "data": {
                "kind": "shapes",
                "num_samples": 256,
                "style": style,
                "placement": "middle",
                "cache_dir": str(work / "cache"),
            },
            "train": {"steps": num_steps, "batch_size": 16, "precision": "fp32"},
            "optimizer": {"lr": 2e-3, "schedule": "cosine", "warmup_steps": 10},
            "validate": {"num_held_out": 0},
        },
        source="proof",
    )
    began_s = time.process_time()
    result = train(asked, work / "runs", Observer())
    assert result.base_unchanged
    return result.run.path, time.process_time() - began_s


def test_a_style_is_learnt_within_two_minutes_of_one_processor(
    shipped: Path, proof_size: ProofSize, report_figure: Callable[[str], None], tmp_path: Path
) -> None:
    """Paired by caption and noise. The control is the same training on plain images: its gain must not show."""
    import torch

    from foretune.models.locating import open_family
    from foretune.record.run_directory import RunDirectory
    from foretune.training.trained_run import load_trained
    from tools.small_model.checking import sample_captions

    family = open_family(shipped)

    def drawn(**parts: Any) -> list[npt.NDArray[np.float32]]:
        pipeline = family.load_pipeline(shipped, torch.float32, **parts)
        return sample_captions(family, pipeline, captions, num_steps=20, seed=0)

    captions = captions_shown("unseen")[: proof_size(67, 24)]
    num_steps = proof_size(300, 60)
    base = drawn()
    gains: dict[str, list[float]] = {}
    took_s: dict[str, float] = {}
    styles: tuple[ShapesStyle, ...] = (STYLE, "plain")
    for style in styles:
        run, took_s[style] = trained_adapter(tmp_path, style, num_steps)
        trained = load_trained(RunDirectory.open(run), torch.float32, merge=True)
        tuned = drawn(transformer=trained.method.denoiser)
        gains[style] = [
            style_score(after, STYLE) - style_score(before, STYLE) for before, after in zip(base, tuned, strict=True)
        ]
    gain, low, high = mean_interval(gains[STYLE], CONFIDENCE)
    control, control_low, control_high = mean_interval(gains["plain"], CONFIDENCE)
    before = float(np.mean([style_score(image, STYLE) for image in base]))
    report_figure(
        f"LoRA to {STYLE!r}, {num_steps} steps, {took_s[STYLE]:.0f} s of one processor: score {before:.2f} to "
        f"{before + gain:.2f}, gain {gain:.2f} ({low:.2f} to {high:.2f}) over {len(captions)} captions; on plain "
        f"images {control:+.2f} ({control_low:+.2f} to {control_high:+.2f})"
    )
    assert low > proof_size(30, 10) / 100
    assert control_high < low
    assert control_high < 0.1
    assert took_s[STYLE] < 120
