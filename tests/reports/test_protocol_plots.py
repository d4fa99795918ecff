"""Study files' answers as pictures."""

from pathlib import Path

import pytest

from foretune.analyse.studying import summarise_study
from foretune.reports.protocol_plots import write_protocol_plots
from tests.analyse.made_studies import make_part

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("protocol", ["equal-time", "equal-steps", "convergence"])
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
    svg, png = write_protocol_plots(study, tmp_path)
    text = svg.read_text()
    words = {
        "equal-time": ("held-out loss", "steps made", "smallest", "two-threads"),
        "equal-steps": ("training, iterations/s", "inference, steps/s", "peak memory, MiB", "largest"),
        "convergence": ("optimizer steps", "held-out loss", "training loss", "one-thread, smallest"),
    }
    for word in words[protocol]:
        assert word in text, word
    assert png.read_bytes().startswith(b"\x89PNG")
    assert max(svg.stat().st_size, png.stat().st_size) < 150_000
    again = tmp_path / "again"
    again.mkdir()
    assert write_protocol_plots(study, again)[0].read_text() == text, "the same numbers give the same bytes"
