"""What studies found, computed anew from their run directories, for reports that take them as folders of runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from foretune.analyse.studying import STUDY_FILE, summarise_study
from foretune.core.errors import UserError
from foretune.core.values import Finding

_DEPTH = 2
"""Folders below a named one in which a study is looked for: studies/<name>."""


def study_findings(paths: Sequence[Path]) -> list[Finding]:
    """The findings of every study among the folders, or that a folder is part of."""
    found: list[Finding] = []
    for directory in dict.fromkeys(study for path in paths for study in _studies(path.resolve(), _DEPTH)):
        try:
            found += summarise_study(directory).findings
        except UserError as error:
            # The runs are in the report all the same.
            found.append(
                Finding(sentence=f"The study {directory.name} cannot be read.", evidence=(), caveat=str(error))
            )
    return found


def _studies(path: Path, depth: int) -> Iterator[Path]:
    if (path / STUDY_FILE).is_file():
        yield path
    elif depth and path.is_dir() and not (path / "experiment.yaml").is_file():
        for folder in sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.is_symlink()):
            yield from _studies(folder, depth - 1)
