"""The largest batch that fits under an enforced limit: exact, and in at most half of the trials of a bisection."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import foretune
from foretune.sweeps.strategies.frontier import bisection_probes
from tests.proofs.conftest import TinyModels

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]
NUM_SIZES = 256
LIMIT_GIB = 0.75


@pytest.mark.parametrize(("family", "size_px"), [("flux", 256), ("sd3", 256), ("ddpm", 64)])
def test_the_frontier_is_exact_in_at_most_half_of_a_bisections_trials(
    family: str, size_px: int, tmp_path: Path, tiny_models: TinyModels, report_figure: Callable[[str], None]
) -> None:
    text = {} if family == "ddpm" else {"max_text_tokens": 32}
    experiment = {
        "model": str(tiny_models.path(family)),
        "method": {"kind": "full"},
        "data": {"kind": "shapes", "resolution": size_px, **text},
        "train": {"precision": "fp32"},
        "parallel": {"device": "cpu", "threads": 1},
    }
    path = tmp_path / "frontier.yaml"
    mapping = {
        "experiment": experiment,
        "measure": "speed",
        "steps": 2,
        "synthetic_data": True,
        "axes": {"train.batch_size": {"from": 1, "to": NUM_SIZES, "step": 1}},
        "strategy": {"kind": "frontier", "key": "train.batch_size"},
        "limits": {"host_gib": LIMIT_GIB},
    }
    path.write_text(yaml.safe_dump(mapping))
    outcome = foretune.sweep(path, sweeps=tmp_path / "sweeps", plot=False)
    kinds = {int(one.labels["train.batch_size"]): one.outcome.kind for one in outcome.results}
    run = {size: kind for size, kind in kinds.items() if kind != "predicted not to fit"}
    largest = max(size for size, kind in run.items() if kind == "done")
    assert run[largest + 1] == "out of host memory", "the next size up really fails"
    num_bisected = len(bisection_probes(NUM_SIZES, largest))
    report_figure(f"frontier of {family}: batch {largest} in {len(run)} trials, a bisection needs {num_bisected}")
    assert len(run) <= num_bisected / 2
