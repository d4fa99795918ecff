"""Writes the table of docs/gpu-proofs.md from received results: `python -m tests.docs.gpu_proofs_page`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.gpu_proofs.results import GpuProofs

_DOCS = Path(__file__).parents[2] / "docs"
PAGE = _DOCS / "gpu-proofs.md"
RECEIVED = _DOCS / "data" / "gpu_proofs.json"
_PART = re.compile(r"(<!-- table -->\n).*?(<!-- end -->)", re.DOTALL)
NOWHERE = (
    "Nowhere yet: no results have been received. What these pages say of GPUs rests on published figures, and on tests "
    "that run on a CPU."
)


def received(path: Path = RECEIVED) -> list[GpuProofs]:
    return [GpuProofs.from_mapping(content) for content in json.loads(path.read_text(encoding="utf-8"))]


def written(page: str, results: Sequence[GpuProofs]) -> str:
    """The page with its table."""
    return _PART.sub(lambda found: f"{found[1]}{table(results)}\n{found[2]}", page)


def table(results: Sequence[GpuProofs]) -> str:
    """One line for each device and date; a sentence while there is none."""
    if not results:
        return NOWHERE
    lines = [
        "| device | driver | torch | date | passed | failed | skipped | memory error | step time error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_line(one) for one in sorted(results, key=lambda one: (one.date, _device(one))))])


def _line(one: GpuProofs) -> str:
    counts = [sum(proof.outcome == name for proof in one.proofs) for name in ("passed", "failed", "skipped")]
    cells = [
        _device(one),
        str(one.environment.get("driver") or one.environment.get("accelerator_version")),
        str(one.environment["torch"]),
        one.date,
        *map(str, counts),
        _error(one.score, "memory"),
        _error(one.score, "speed"),
    ]
    return f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |"


def _device(one: GpuProofs) -> str:
    return str(one.environment["device"])


def _error(score: dict[str, Any], part: str) -> str:
    figures = score.get(part) or {}
    if not figures.get("num_rows"):
        return "-"
    return f"{figures['median_abs_error']:.1%} of {figures['num_rows']}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), received()), encoding="utf-8")
