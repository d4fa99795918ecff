"""Benches of inference are compared as trainings are: each repeat one value, unlike things refused."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.comparing import Permission, Unlike
from foretune.analyse.comparing_inference import compare_paths
from foretune.core.errors import UserError
from tests.analyse.made_runs import ENVIRONMENT, make_repeats

LEVELS_S = (0.100, 0.101, 0.099, 0.100, 0.102)


def make_bench(path: Path, levels_s: Sequence[float], environment: dict[str, Any] | None = None, **facts: Any) -> Path:
    """A bench of inference as `foretune bench --inference` writes it, as far as it is read."""

    def repeat(level_s: float, num: int) -> dict[str, Any]:
        times_s = [level_s * (1 + 0.002 * (step % 3)) for step in range(num)]
        peaks = {"peak_device_bytes": None, "peak_host_bytes": 2**30}
        return {"times_s": times_s, "environment": environment or ENVIRONMENT, **peaks}

    content = {
        "format": "InferenceBench", "model": "m", "adapter": None, "device": "cpu", "size_px": 64, "batch_size": 4,
        "choices": {"precision": "fp32", "num_inference_steps": 28, "image_batch_size": 1},
        "denoising": [repeat(level_s, 20) for level_s in levels_s],
        "imaging": [repeat(10 * level_s, 3) for level_s in levels_s],
        **facts,
    }  # fmt: skip
    path.mkdir(parents=True)
    (path / "bench.json").write_text(json.dumps(content))
    return path


def test_denoising_images_and_memory_are_compared(tmp_path: Path) -> None:
    a = make_bench(tmp_path / "a" / "m" / "1", LEVELS_S).parents[1]
    b = make_bench(tmp_path / "b" / "m" / "1", [1.5 * level_s for level_s in LEVELS_S])
    found = compare_paths([a], [b])
    by_name = {one.comparison.quantity: one for one in found.quantities}
    assert list(by_name) == ["step time", "speed", "images end to end", "peak process memory"]
    assert by_name["step time"].comparison.answer == "b is higher"
    assert by_name["step time"].comparison.ratio == pytest.approx(1.5)
    assert "one bench was made after the other" in by_name["step time"].comparison.warnings[-1]
    assert "the same benches" in compare_paths([a], [a]).quantities[0].comparison.warnings[-1]
    # 4 images take a denoising step in about 0.1 s; one is finished in about a second.
    assert by_name["speed"].a.value == pytest.approx(40, rel=0.02)
    assert by_name["speed"].comparison.ratio == pytest.approx(1 / 1.5)
    assert by_name["images end to end"].a.value == pytest.approx(1, rel=0.02)
    assert by_name["peak process memory"].comparison.answer == "no difference shown"


def test_other_batches_adapters_and_machines_are_refused_or_labelled(tmp_path: Path) -> None:
    a = make_bench(tmp_path / "a", LEVELS_S)
    b = make_bench(tmp_path / "b", LEVELS_S, batch_size=8, adapter="x.safetensors")
    with pytest.raises(Unlike, match=r"adapter: none against x\.safetensors; batch_size: 4 against 8"):
        compare_paths([a], [b])
    assert "across questions" in compare_paths([a], [b], Permission(across_questions=True)).labels[0]
    c = make_bench(tmp_path / "c", LEVELS_S, {**ENVIRONMENT, "cpu": "other"})
    with pytest.raises(Unlike, match="cpu: one against other"):
        compare_paths([a], [c])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("precision", "bf16", "precision: fp32 against bf16"),
        ("quantize", "int8", "quantize: none against int8"),
        ("compile", "regional", "compile: off against regional"),
        ("merge", True, "merge: False against True"),
        ("devices", 2, "devices: 1 against 2"),
    ],
)
def test_another_way_to_sample_is_refused(field: str, value: object, said: str, tmp_path: Path) -> None:
    """Also beside a bench from before the field existed."""
    choices = {"precision": "fp32", "num_inference_steps": 28, "image_batch_size": 1, field: value}
    a, b = make_bench(tmp_path / "a", LEVELS_S), make_bench(tmp_path / "b", LEVELS_S, choices=choices)
    with pytest.raises(Unlike, match=re.escape(f"different things ({said})")):
        compare_paths([a], [b])


def test_a_batch_that_was_halved_is_like_one_of_that_size(tmp_path: Path) -> None:
    choices = {"precision": "fp32", "num_inference_steps": 28, "image_batch_size": 1, "batch_size": 8}
    a, b = make_bench(tmp_path / "a", LEVELS_S), make_bench(tmp_path / "b", LEVELS_S, choices=choices)
    assert compare_paths([a], [b]).labels == ()


def test_inference_and_training_are_not_mixed(tmp_path: Path) -> None:
    bench, runs = make_bench(tmp_path / "a", LEVELS_S), make_repeats(tmp_path / "runs", LEVELS_S)
    with pytest.raises(Unlike, match="is a bench of inference"):
        compare_paths([bench], [runs])
    with pytest.raises(UserError, match="does not exist"):
        compare_paths([runs], [tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unlike, match="no bench of inference in"):
        compare_paths([bench], [tmp_path / "empty"])
    (bench / "bench.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        compare_paths([bench], [bench])
