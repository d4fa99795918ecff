"""Studies as pictures."""

import sys
from pathlib import Path

import pytest

from foretune.analyse.study_summary import summarise_study
from foretune.core.errors import MissingExtra
from foretune.reports.study_plots import write_study_plots
from tests.analyse.made_studies import make_part

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("protocol", ["equal-time", "equal-steps", "convergence", "speed"])
def test_every_protocol_is_drawn(protocol: str, tmp_path: Path) -> None:
    for seed in range(3):
        for place, name in enumerate(("one-thread", "two-threads")):
            for number, setting in enumerate(("smallest", "largest")):
                make_part(
                    tmp_path, name, seed, protocol=protocol, setting=setting, order=(number, place),
                    step_s=0.1 + 0.01 * seed, held_out={0: 1.0, 20: 0.5 + 0.01 * seed}, counted_s=2.0,
                    pass_s=0.1 + 0.01 * seed,
                )  # fmt: skip
    study = summarise_study(tmp_path / "hardware").to_mapping()
    svg, png = write_study_plots(study, tmp_path)
    text = svg.read_text()
    words = {
        "equal-time": ("held-out loss", "steps made", "smallest", "two-threads"),
        "equal-steps": (
            "training, samples/s",
            "training, iterations/s",
            "inference, steps/s",
            "peak memory, MiB",
            "largest",
        ),
        "speed": ("samples/s", "step time, ms", "peak memory, MiB", "two-threads", "largest"),
        "convergence": ("optimizer steps", "held-out loss", "training loss", "one-thread, smallest"),
    }
    for word in words[protocol]:
        assert word in text, word
    assert png.read_bytes().startswith(b"\x89PNG")
    assert max(svg.stat().st_size, png.stat().st_size) < 150_000
    again = tmp_path / "again"
    again.mkdir()
    assert write_study_plots(study, again)[0].read_text() == text, "the same numbers give the same bytes"


def test_a_number_that_varies_is_drawn_on_a_line(tmp_path: Path) -> None:
    for seed in range(3):
        for place, size in enumerate((1, 2, 16)):
            make_part(
                tmp_path, f"batch_size-{size}", seed, protocol="speed", order=(0, place),
                step_s=0.1 * size + 0.01 * seed,
                about={"changes": {"train.batch_size": size}, "epoch_samples": 50_000},
            )  # fmt: skip
    study = summarise_study(tmp_path / "hardware").to_mapping()
    assert study["varied"] == "train.batch_size"
    assert [row["at"] for row in study["rows"]] == [1, 2, 16]
    text = write_study_plots(study, tmp_path)[0].read_text()
    for word in ("train.batch_size", "time for 50,000 samples, min", ">16<"):
        assert word in text, word
    assert "batch_size-16" not in text, "the axis names them"


def test_without_the_extra_the_install_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match="plots"):
        write_study_plots({"protocol": "speed"}, tmp_path)
