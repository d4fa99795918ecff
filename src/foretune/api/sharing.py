"""`share`: a bench as one row of a file that its owner may give to others."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.live_steps import LiveSteps
from foretune.core.errors import UserError
from foretune.core.input_files import open_input
from foretune.core.observer import Observer
from foretune.core.output_files import require_writable

if TYPE_CHECKING:
    from foretune.backtests.shared.row_format import SharedRow
    from foretune.measure.bench import Bench

_MOST_BYTES = 64 * 2**20


def shared_row(bench: "Bench", *, observer: Observer | None = None) -> "SharedRow":
    """The row that `share` would write: plan, measured speed and memory, environment. Nothing is written.

    Args:
        bench: what `bench` returned.
        observer: receives progress.
    """
    from foretune.measure.sharing import row_of

    return row_of(bench, LiveSteps(observer or Observer()))


def share(row: "SharedRow", file: str | Path) -> None:
    """Adds a row to a CSV file, which is made if there is none.

    Args:
        row: what `shared_row` returned. Look at it first: `row.cells()`.
        file: the file; rows of other benches may be in it.
    """
    from foretune.backtests.shared.row_format import as_csv

    path = Path(file)
    is_new = refuse_other_files(path)
    text = as_csv(row.cells(), has_header=is_new)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", newline="") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}. Choose another place.") from error


def refuse_other_files(path: Path) -> bool:
    """Whether the file is to be made. Raises for one that rows cannot be added to."""
    from foretune.backtests.shared.row_format import COLUMNS

    require_writable(path)
    if not path.exists():
        return True
    header = ",".join(COLUMNS).encode() + b"\n"
    with open_input(path, _MOST_BYTES) as file:
        beginning = file.read(len(header))
        if not beginning:
            return True
        if beginning != header:
            raise UserError(f"{path} is not a file of shared measurements. Choose another place.")
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            raise UserError(f"The last line of {path} is cut off. Remove it, or choose another place.")
    return False
