"""A digest becomes a picture, and the same digest the same bytes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.memory_timeline import CATEGORIES, MemoryTimeline
from foretune.analyse.trace_digest import ModuleTime, OperatorTime, Shares, TraceDigest
from foretune.core.errors import MissingExtra
from foretune.reports.profile_plot import draw_operators, write_profile_plot

DIGEST = TraceDigest(
    device="cpu",
    num_steps=2,
    wall_s=0.2,
    operators=tuple(OperatorTime(f"aten::operator_with_a_long_name_{n}", 0.02 / (n + 1), 0.1, 4) for n in range(14)),
    phases_s={"data": 0.02, "forward": 0.06, "backward": 0.12},
    modules=tuple(ModuleTime(f"single_transformer_blocks.{n}", 0.01, 0.02) for n in range(38)),
    shares=Shares(input=0.1, launch=0.2, idle=0.0, copy=0.05),
    memory=MemoryTimeline(times_s=(0.0, 0.1, 0.2), held_bytes=dict.fromkeys(CATEGORIES, (2**20, 2**21, 2**20))),
    left_out=None,
)


def test_the_picture_names_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    svg, png = write_profile_plot(DIGEST, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text(encoding="utf-8")
    for words in (
        "The 10 longest operators",
        "2 steps on the CPU",
        "backward",
        "stb.0",
        "optimizer state",
        "launch 20.0%",
    ):
        assert words in text
    assert "operator_with_a_long_name_10" not in text
    before = svg.read_bytes()
    write_profile_plot(DIGEST, tmp_path)
    assert svg.read_bytes() == before


def test_each_operator_has_its_bar(tmp_path: Path) -> None:
    """In the order and of the length of the table, also where names differ only in the middle or the end."""
    from matplotlib.figure import Figure

    names = (
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::a_long_name_that_differs_only_in_one_of_its_letters_in_the_middle",
        "aten::a_long_name_that_differs_only_in_two_of_its_letters_in_the_middle",
        "autograd::engine::evaluate_function: mm",
        "aten::mm",
        *(f"aten::op{n}" for n in range(8)),
    )
    digest = replace(
        DIGEST, operators=tuple(OperatorTime(name, 0.04 / (n + 1), 0.2 / (n + 1), 4) for n, name in enumerate(names))
    )
    panel = Figure().subplots()
    draw_operators(panel, digest)
    bars: list[Any] = list(panel.patches)
    widths = [bar.get_width() for bar in bars]
    assert widths == [1000 * operator.seconds / digest.num_steps for operator in digest.longest]
    assert [bar.get_y() + bar.get_height() / 2 for bar in bars] == pytest.approx(range(10))
    assert panel.get_ylim()[0] > panel.get_ylim()[1], "the first is at the top"
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert len(set(labels)) == 10
    for label, operator in zip(labels, digest.longest, strict=True):
        head, _, tail = label.partition("…")
        assert head in operator.name
        assert operator.name.endswith(tail or head)
    svg, _ = write_profile_plot(digest, tmp_path)
    assert all(label in svg.read_text(encoding="utf-8") for label in labels)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"foretune\[plots\]"):
        write_profile_plot(DIGEST, tmp_path)
