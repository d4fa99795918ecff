"""Each lever on one small FLUX: memory, time and loss, forecast beside measured. A full run writes the table.

A routine run has three rows, half of the blocks, and no times: nothing is asserted of them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tests.conftest import ProofSize
from tests.proofs.lever_rows import LEVERS, Row, examine

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("operators_are_remembered"), pytest.mark.takes_turns]

_PAGE = Path(__file__).parents[2] / "docs" / "levers.md"
_BEGIN, _END = (
    "<!-- the table below is written by tests/proofs/test_lever_table.py -->\n",
    "<!-- end of the table -->\n",
)
_ROUTINE = ("LoRA", "gradient_checkpointing=1", "activation_offload=true")
_MIB = 2**20


@pytest.mark.slow
def test_levers_do_what_is_forecast(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    is_full = bool(proof_size(1, 0))
    # The second step is the first with changed weights, the third the first with two gradients in its averages.
    num_loss_steps = proof_size(5, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        levers = [lever for lever in LEVERS if is_full or lever.name in _ROUTINE]
        depths = proof_size(3, 2), proof_size(7, 3)
        rows = examine(levers, depths, num_loss_steps, num_rounds=proof_size(15, 0))
    finally:
        torch.set_num_threads(before)
    for line in table(rows, num_loss_steps):
        report_figure(line)
    by_name = {row.lever.name: row for row in rows}
    for row in rows:
        base = by_name.get(row.lever.compared_to or "")
        if row.forecast_peak_bytes is not None:
            assert row.forecast_peak_bytes == pytest.approx(row.peak_bytes, rel=0.04), row.lever.name
        if base is None:
            continue
        if row.lever.changes_bits:
            assert row.loss == pytest.approx(base.loss, rel=1e-3), row.lever.name
        else:
            assert row.same_bits, row.lever.name
        if row.forecast_peak_bytes is not None and base.forecast_peak_bytes is not None:
            expected, found = row.forecast_peak_bytes / base.forecast_peak_bytes, row.peak_bytes / base.peak_bytes
            # A change that can be seen has the direction of the forecast.
            assert abs(found - 1) < 0.02 or (expected < 1) == (found < 1), row.lever.name
    assert by_name["gradient_checkpointing=1"].peak_bytes < 0.8 * by_name["LoRA"].peak_bytes
    if is_full:
        text = _PAGE.read_text(encoding="utf-8")
        head, tail = text.partition(_BEGIN)[0], text.partition(_END)[2]
        _PAGE.write_text(
            "".join((head, _BEGIN, "\n", *(f"{line}\n" for line in table(rows, num_loss_steps)), "\n", _END, tail))
        )


def test_the_page_has_every_lever() -> None:
    text = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]
    shown = [line.split("|")[1].strip().strip("`") for line in text.splitlines() if line.startswith("|")][2:]
    assert shown == [lever.name for lever in LEVERS], "FORETUNE_PROOFS=full python -m pytest -k lever_table writes it"


def table(rows: Sequence[Row], num_loss_steps: int) -> list[str]:
    """Markdown: memory, time and loss, each as forecast and as measured."""
    loss = f"loss after {num_loss_steps} steps"
    lines = [
        f"| | peak, predicted | peak, measured | error | GPU host memory | FLOPs | step time | {loss} |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        expected = row.forecast_peak_bytes
        cells = [
            f"`{row.lever.name}`" if row.lever.compared_to else row.lever.name,
            f"{expected / _MIB:.1f} MiB" if expected is not None else "not modelled",
            f"{row.peak_bytes / _MIB:.1f} MiB",
            f"{expected / row.peak_bytes - 1:+.1%}" if expected is not None else "",
            f"{row.forecast_host_bytes / _MIB:.1f} MiB" if row.forecast_host_bytes else "",
            f"x {row.forecast_work:.2f}" if row.forecast_work is not None else "",
            f"x {row.step_time:.2f}" if row.step_time is not None else "",
            f"{row.loss:.5f}" + ("" if row.same_bits is None else ", bit-identical" if row.same_bits else ", rounding"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
