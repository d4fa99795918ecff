"""Which configurations may be ranked against each other: same model and data, same kind of run, same length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foretune.analyse.groups import Configuration, differing
from foretune.analyse.run_data import RunData, RunKind

_KINDS: tuple[RunKind, ...] = ("training", "bench", "profile")
_LENGTH_KEYS = frozenset({"train.steps", "train.epochs", "train.seconds", "train.clock", "optimizer.warmup_steps"})


@dataclass(frozen=True)
class Comparable:
    """Configurations that answer one question."""

    configurations: tuple[Configuration, ...]
    kind: RunKind
    length: str | None
    """How long each was trained, in words; None where the length is what is compared, or no configuration ran."""
    is_split_by_length: bool = False
    """Whether others differ from these only in how long they were trained."""


def comparable_groups(found: Sequence[Configuration], subject: Callable[[Configuration], object]) -> list[Comparable]:
    """Trainings first, then benches and profiles. `subject`: the model and data of a configuration.

    A bench or profile makes a few steps: its losses and its total time say nothing about a training. Among trainings,
    more steps win on quality and lose on time whatever else differs, so only equal lengths are ranked against each
    other, unless the length is all that differs.
    """
    by_subject: dict[tuple[RunKind, object], list[Configuration]] = {}
    for one in found:
        by_subject.setdefault((one.runs[0].kind, subject(one)), []).append(one)
    groups = []
    for (kind, _), group in sorted(by_subject.items(), key=lambda item: _KINDS.index(item[0][0])):
        if kind != "training":
            groups.append(Comparable(tuple(group), kind, None))
        elif set(differing([one.settings for one in group])) <= _LENGTH_KEYS and len(group) > 1:
            groups.append(Comparable(tuple(group), "training", None))
        else:
            lengths = _by_length(group)
            groups += [
                Comparable(tuple(equal), "training", text, is_split_by_length=len(lengths) > 1)
                for text, equal in lengths.items()
            ]
    return groups


def _by_length(group: Sequence[Configuration]) -> dict[str | None, list[Configuration]]:
    """By equal steps, or by equal samples seen where that keeps more together, as in a comparison of batch sizes."""
    by_steps: dict[str | None, list[Configuration]] = {}
    by_samples: dict[str | None, list[Configuration]] = {}
    for one in group:
        by_steps.setdefault(_length(one, counts_samples=False), []).append(one)
        by_samples.setdefault(_length(one, counts_samples=True), []).append(one)
    return by_samples if len(by_samples) < len(by_steps) else by_steps


def _length(one: Configuration, *, counts_samples: bool) -> str | None:
    train = one.runs[0].experiment.train
    if train.seconds is not None:
        return f"{train.seconds:g} s" + (", validation included" if train.clock == "run" else "")
    num_steps = max(map(_num_steps, one.runs))
    if not num_steps:
        return None if train.epochs is None else f"{train.epochs:,} epochs"
    if counts_samples:
        return f"{num_steps * one.runs[0].samples_per_step:,} samples"
    return f"{num_steps:,} steps"


def _num_steps(run: RunData) -> int:
    """As planned; a run that stopped early still belongs to the length it was meant to have."""
    planned = run.experiment.train.steps or run.effective.get("num_steps")
    return planned if isinstance(planned, int) else len(run.losses)
