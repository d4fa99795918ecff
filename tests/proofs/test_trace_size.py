"""The trace of a model as deep as FLUX stays small, and is digested while one waits."""

import gzip
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diffusers import FluxTransformer2DModel

from foretune.analyse.trace_digest import digest, newest_trace
from foretune.core.observer import Observer
from foretune.measure import profiling
from foretune.models.tiny import flux, write_tiny_pipeline
from foretune.training.profiling.trace_file import MOST_TRACE_BYTES
from tests.conftest import ProofSize
from tests.training.short_runs import short_asked

pytestmark = pytest.mark.proof


def test_a_trace_of_full_depth_is_small_and_quick_to_digest(
    tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deep(**config: Any) -> Any:
        return FluxTransformer2DModel(**{**config, "num_layers": 19, "num_single_layers": 38})

    monkeypatch.setattr(flux, "FluxTransformer2DModel", deep)
    model = write_tiny_pipeline("flux", tmp_path / "deep")
    monkeypatch.undo()
    monkeypatch.setattr(profiling, "NUM_STEPS_BEFORE", 2)
    num_steps = proof_size(5, 1)
    run = profiling.profile(short_asked(model, tmp_path), tmp_path / "runs", num_steps, Observer())
    path = newest_trace(run.path)
    began_s = time.process_time()
    found = digest(path)
    took_s = time.process_time() - began_s
    num_bytes = len(gzip.decompress(path.read_bytes()))
    report_figure(
        f"{num_steps} steps of 57 blocks: {num_bytes / 1e6:.0f} MB of text, "
        f"{path.stat().st_size / 1e6:.1f} MB on the disk, digested in {took_s:.1f} s; left out: {found.left_out}"
    )
    assert found.num_steps == num_steps
    assert len(found.modules) == 1 + 57
    assert num_bytes <= MOST_TRACE_BYTES
    assert took_s < 10
