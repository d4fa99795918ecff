"""The columns of a table of runs: which there are, what their numbers mean, and which side of them is better."""

from collections.abc import Iterable
from functools import cache

from foretune.analyse.run_index.row_format import setting_keys
from foretune.analyse.run_index.run_row import ALWAYS_COLUMNS
from foretune.core.errors import UnknownName
from foretune.core.scores import METRIC_SPECS
from foretune.core.values.run_record import Measured

PATH = "path"
"""Where the run directory is, relative to the folder that was searched: no column of the index, but its key."""
STARTED = "started"
QUALITY = "quality."
_HIGHER_IS_BETTER = frozenset({"samples_per_s", "utilisation", "planned.samples_per_s", "steps"})
_HIGHER_SCORES = frozenset(
    QUALITY + score.name.replace(" ", "_") for spec in METRIC_SPECS for score in spec.scores if score.higher_is_better
)


def require_known(names: Iterable[str], present: Iterable[str]) -> None:
    """Raises `UnknownName`, with the nearest column, where a name is no column of these runs and no setting at all."""
    known = {*present, *ALWAYS_COLUMNS, PATH}
    for name in names:
        # A setting that no run has is known all the same: it has no value in any of them.
        if name not in known and name not in _every_column():
            raise UnknownName("column", name, known | _every_column())


def is_better_high(column: str) -> bool:
    """Whether a table that is sorted by this column begins with the largest number."""
    return column in _HIGHER_IS_BETTER or column in _HIGHER_SCORES or column == STARTED


@cache
def _every_column() -> frozenset[str]:
    return frozenset({*setting_keys(), *(name for name in Measured.model_fields if name != "held_out_losses")})
