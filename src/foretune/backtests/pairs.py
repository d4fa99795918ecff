"""Published pairs: two trainings that differ in one choice alone. Does the plan change in the direction they did?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from foretune.backtests.scoring import Result
from foretune.choices.experiment import Experiment

Choice = Literal["quantised base", "checkpointing"]

_LEAST_CHANGE = 0.01
"""A published change by less has no direction: the same training on two GPUs differs by that much."""
_CHECKPOINTING = ("gradient_checkpointing", "checkpoint_segment", "checkpoint_stride", "checkpoint_parts")


@dataclass(frozen=True)
class Pair:
    """Two rows, and how the second differs from the first."""

    choice: Choice
    first: Result
    second: Result

    @property
    def published_change(self) -> float:
        return self.second.published_bytes / self.first.published_bytes - 1

    @property
    def predicted_change(self) -> float:
        return self.second.predicted_bytes / self.first.predicted_bytes - 1

    @property
    def is_right(self) -> bool:
        return self.published_change * self.predicted_change > 0


def pairs(results: Sequence[Result]) -> tuple[Pair, ...]:
    """All pairs of one source and device of which one is quantised, or checkpointed, and the other is not."""
    return (
        *_differing(results, "quantised base", _without_quantisation, _is_quantised),
        *_differing(results, "checkpointing", _without_checkpointing, _is_checkpointed),
    )


def _differing(
    results: Sequence[Result],
    choice: Choice,
    rest: Callable[[Experiment], Any],
    has_choice: Callable[[Experiment], bool],
) -> list[Pair]:
    groups: dict[Any, list[Result]] = {}
    for result in results:
        asked = result.asked
        key = (asked.source, asked.device, asked.sizes, result.peak, asked.resident, rest(asked.experiment))
        groups.setdefault(key, []).append(result)
    found = []
    for group in groups.values():
        for one, other in combinations(group, 2):
            chosen = [has_choice(result.asked.experiment) for result in (one, other)]
            if sum(chosen) == 1:
                first, second = (one, other) if chosen[1] else (other, one)
                found.append(Pair(choice, first, second))
    return [pair for pair in found if abs(pair.published_change) >= _LEAST_CHANGE]


def _is_quantised(experiment: Experiment) -> bool:
    return experiment.quantize.denoiser != "none"


def _is_checkpointed(experiment: Experiment) -> bool:
    return experiment.levers.gradient_checkpointing > 0


def _without_quantisation(experiment: Experiment) -> str:
    return experiment.model_copy(update={"quantize": type(experiment.quantize)()}).model_dump_json()


def _without_checkpointing(experiment: Experiment) -> str:
    usual = type(experiment.levers)()
    levers = experiment.levers.model_copy(update={name: getattr(usual, name) for name in _CHECKPOINTING})
    return experiment.model_copy(update={"levers": levers}).model_dump_json()
