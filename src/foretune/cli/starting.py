"""What a verb checks before it starts an experiment here: everything that is wrong is reported at once."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.cli.extras import require
from foretune.cli.files import require_writable
from foretune.cli.quiet import hush
from foretune.core.errors import Mistakes, Refused
from foretune.core.extras import is_installed

if TYPE_CHECKING:
    from foretune.choices.experiment import Experiment
    from foretune.config import Asked
    from foretune.config.readiness import Need


def read_to_start(
    path: Path, overrides: Sequence[str], feature: str, needs: "Collection[Need]", output: Path | None = None
) -> "Asked":
    """The experiment, once its file, the overrides, this machine and this installation have been checked."""
    from foretune.config import read_experiment

    mistakes = Mistakes()
    asked = mistakes.attempt(partial(read_experiment, needs=needs, checks=[_absent_device]), path, overrides)
    mistakes.attempt(require, "train", feature)
    if output is not None:
        mistakes.attempt(require_writable, output)
    mistakes.raise_all()
    assert asked is not None, "nothing was wrong with it"
    return asked


def _absent_device(experiment: "Experiment") -> Iterator[str]:
    """Only torch knows its devices, and importing it takes seconds: only where one is named that may be absent."""
    device = experiment.parallel.device
    if device in ("auto", "cpu") or not is_installed("train"):
        return
    hush()
    from foretune.run.devices import choose_device

    try:
        choose_device(device)
    except Refused as refusal:
        yield str(refusal)
