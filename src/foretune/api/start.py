"""What a verb does before it starts: it reports every mistake at once, then it imports torch."""

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.core.errors import Mistakes, Refused, UserError
from foretune.core.extras import is_installed, require
from foretune.core.importing import collector_paused, imported_at_use
from foretune.core.observer import Observer
from foretune.core.output_files import require_writable

if TYPE_CHECKING:
    from foretune.choices.experiment import Experiment
    from foretune.config import Asked
    from foretune.config.readiness import Need

ExperimentLike = str | Path | Mapping[str, Any]
"""An experiment file, its content, or a model with which `init` would start one: a catalogue name, Hub id or folder."""
Changes = Mapping[str, Any] | Iterable[str]
"""Settings by dotted key, `{"train.steps": 10}`; or as on the command line, `["train.steps=10"]`."""


def overrides_of(changes: Changes | None) -> tuple[str, ...]:
    """Changes as the command line has them. JSON is YAML, which their values are read as."""
    if changes is None:
        return ()
    if isinstance(changes, str):
        return (changes,)
    if isinstance(changes, Mapping):
        return tuple(f"{key}={json.dumps(value, default=str)}" for key, value in changes.items())
    return tuple(changes)


def read_to_start(
    experiment: ExperimentLike,
    changes: Changes | None,
    feature: str,
    needs: "Collection[Need]",
    output: Path | None = None,
    *,
    data: str | Path | None = None,
    is_synthetic: bool = False,
) -> "Asked":
    """The experiment, once its file, the changes, this machine and this installation have been checked.

    `data` and `is_synthetic` are for an experiment that begins with a model: what it is trained on, or that no data
    are read.
    """
    mistakes = Mistakes()
    place = None if data is None else str(data)
    asked = mistakes.attempt(
        partial(_read, experiment, overrides_of(changes), needs, data=place, is_synthetic=is_synthetic)
    )
    mistakes.attempt(require, "train", feature)
    if output is not None:
        mistakes.attempt(require_writable, output)
    mistakes.raise_all()
    assert asked is not None, "nothing was wrong with it"
    return asked


def _read(
    experiment: ExperimentLike,
    overrides: tuple[str, ...],
    needs: "Collection[Need]",
    *,
    data: str | None,
    is_synthetic: bool,
) -> "Asked":
    from foretune.config.overrides import apply_overrides
    from foretune.config.reading import understand
    from foretune.config.target import read_target

    if not isinstance(experiment, Mapping):
        checks = [absent_device]
        return read_target(experiment, overrides, data=data, is_synthetic=is_synthetic, needs=needs, checks=checks)
    if data is not None:
        raise UserError("data goes with a model's name. The content of an experiment has it in its section `data`.")
    mapping = apply_overrides(dict(experiment), overrides)
    return understand(mapping, source=None, needs=needs, checks=[absent_device])


def announce(asked: "Asked", observer: Observer, *, has_length: bool = True, has_synthetic_data: bool = False) -> None:
    """Reports what was decided where a model was named instead of a file.

    `has_length`: whether the experiment decides how long it trains; `has_synthetic_data`: whether its data are not
    read.
    """
    if asked.is_by_name:
        from foretune.reports.question_text import decision_lines

        for line in decision_lines(asked, has_length=has_length, has_synthetic_data=has_synthetic_data):
            observer.message(line)


class ExperimentFile(Observer):
    """Reports where the experiment of a run is, and the command that takes it, when the run directory is there."""

    def __init__(self, asked: "Asked", observer: Observer, verb: str, *options: str) -> None:
        """Only for an experiment that was typed as a model. The verb and the options make the command."""
        self._observer = observer if asked.is_by_name else Observer()
        self._verb, self._options = verb, options

    def began(self, run: Path) -> None:
        file = str(run / "experiment.yaml")
        again = shlex.join(["foretune", self._verb, file, *self._options])
        self._observer.message(f"Experiment file: {file}. To run it again: {again}")


def absent_device(experiment: "Experiment") -> Iterator[str]:
    """What this machine lacks of the devices that an experiment names.

    Only torch knows them, and importing it takes seconds: only where one is named that may be absent.
    """
    device = experiment.parallel.device
    if device in ("auto", "cpu") or not is_installed("train"):
        return
    from foretune.training.devices import choose_device
    from foretune.training.ranks import found_ranks

    # A launcher may have started processes on other machines, too.
    last = experiment.parallel.devices - 1 if found_ranks() is None else 0
    try:
        choose_device(device, last)
    except Refused as refusal:
        yield str(refusal)


def import_libraries(observer: Observer, *modules: str, warns_if_busy: bool = False, device: str | None = None) -> bool:
    """Imports torch, diffusers and transformers, and the modules that will use them. With `warns_if_busy`, warns if
    other processes use the machine meanwhile, and returns whether they do.

    `device` is the one that was requested, for verbs that compute: "auto" would use the CPU without a word if torch
    does not see the machine's card.
    """
    from foretune.training.busyness import BusyWatch

    watch = BusyWatch() if warns_if_busy else None
    # diffusers and peft import bitsandbytes wherever it is installed, which takes about as long as torch.
    with collector_paused(), imported_at_use("bitsandbytes"):
        for name in ("torch", "diffusers.models.modeling_utils", "transformers.utils", *modules):
            import_module(name)
        observer.imported()
    if device == "auto":
        _warn_of_unused_cards(observer)
    return watch is not None and bool(watch.warn(observer))


def _warn_of_unused_cards(observer: Observer) -> None:
    import torch

    from foretune.record.unused_cards import unused_cards

    unused = None if torch.backends.mps.is_available() else unused_cards(torch)
    if unused is not None:
        observer.warning(f"{unused.text}: everything runs on the CPU. Run: {unused.remedy}")
