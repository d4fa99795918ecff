"""`compare` and `gate`: whether two sets of runs differ at all, and by how much."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.run import RunLike, paths_of
from foretune.api.start import ExperimentLike, import_libraries, read_to_start
from foretune.core.errors import Mistakes, UserError
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.analyse.comparing import Compared, ComparedRuns
    from foretune.analyse.gating import GateAnswer
    from foretune.config.readiness import Need

Side = RunLike | Iterable[RunLike]
"""A run, a bench, a folder of them, or several of these."""
_EXPERIMENT_ENDINGS = (".yaml", ".yml")


def compare(
    a: Side,
    b: Side,
    *,
    across_environments: bool = False,
    across_questions: bool = False,
) -> "ComparedRuns":
    """How `b` relates to `a`: step time, samples a second, peak memory, losses; ratios are b / a, with intervals.

    Args:
        a: runs or benches.
        b: what is compared with them.
        across_environments: compare even if machines or versions differ, with a warning.
        across_questions: compare even if the experiments differ, with a warning.

    Raises:
        Unlike: the two sides cannot be compared; the text says why.
    """
    from foretune.analyse.comparing import Permission
    from foretune.analyse.comparing_inference import compare_paths

    paths_a, paths_b = paths_of(a), paths_of(b)
    _refuse_files(*paths_a, *paths_b)
    permission = Permission(across_environments=across_environments, across_questions=across_questions)
    return compare_paths(paths_a, paths_b, permission)


@dataclass(frozen=True)
class Interleaved:
    """Two experiments that were measured in turns, and how they compare."""

    a: Path
    b: Path
    """Where the benches are."""
    compared: "ComparedRuns"


def measure_and_compare(
    a: ExperimentLike,
    b: ExperimentLike,
    *,
    steps: int = 50,
    repeat: int = 10,
    synthetic: bool = False,
    across_environments: bool = False,
    benches: str | Path = "benches",
    observer: Observer | None = None,
) -> Interleaved:
    """Measures two experiments in turns, in fresh processes, then compares them: `foretune compare --run`.

    Args:
        a: an experiment file or mapping.
        b: the other one; that they differ is the question.
        steps: of each process.
        repeat: fresh processes of each side.
        synthetic: random data in place of the experiment's.
        across_environments: compare even if versions differ, with a warning.
        benches: where the runs are kept.
        observer: receives progress.
    """
    from foretune.analyse.comparing import Permission
    from foretune.analyse.comparing import compare as compare_runs

    observer = observer or Observer()
    needs: tuple[Need, ...] = ("adapters",) if synthetic else ("data", "adapters")
    mistakes = Mistakes()
    asked_a, asked_b = (mistakes.attempt(partial(read_to_start, one, None, "Measuring", needs)) for one in (a, b))
    mistakes.raise_all()
    assert asked_a is not None, "nothing was wrong with it"
    assert asked_b is not None, "nothing was wrong with it"
    import_libraries(observer, "foretune.measure.interleaved")
    from foretune.analyse.run_data import runs_in
    from foretune.measure.interleaved import measure_in_turns

    made = measure_in_turns(
        asked_a, asked_b, Path(benches), observer, num_repeats=repeat, num_steps=steps, is_synthetic=synthetic
    )
    permission = Permission(across_environments=across_environments, across_questions=True)
    return Interleaved(made.a, made.b, compare_runs(runs_in(made.a), runs_in(made.b), permission, is_paired=True))


@dataclass(frozen=True)
class Gated:
    """Whether a candidate is slower than a baseline, and what that rests on."""

    answer: "GateAnswer"
    compared: "ComparedRuns"
    step_time: "Compared"
    speed: "Compared | None"
    max_slowdown: float

    @property
    def passes(self) -> bool:
        return self.answer.verdict == "pass"


def gate(
    baseline: Side,
    candidate: Side,
    *,
    max_slowdown: float = 0.05,
    strict: bool = False,
    across_environments: bool = False,
) -> Gated:
    """Judges a candidate's speed against a baseline's, for continuous integration.

    Args:
        baseline: runs or benches of what is known to be good.
        candidate: runs or benches of what is to be judged.
        max_slowdown: how much longer a step may take, as a share: 0.05 is 5 %.
        strict: pass only if a slowdown beyond the limit is excluded.
        across_environments: judge even if machines or versions differ, with a warning.
    """
    from foretune.analyse.comparing import Permission
    from foretune.analyse.comparing_inference import compare_paths
    from foretune.analyse.gating import judge
    from foretune.analyse.quantities import SPEED, STEP_TIME

    if not 0 < max_slowdown < 1:
        raise UserError(f"max_slowdown={max_slowdown!r} is not a share between 0 and 1. 5 % is 0.05.")
    good, judged = paths_of(baseline), paths_of(candidate)
    _refuse_the_same(good, judged)
    permission = Permission(across_environments=across_environments)
    found = compare_paths(good, judged, permission, names=("the baseline", "the candidate"))
    step_time, speed = found.quantity(STEP_TIME), found.quantity(SPEED)
    if step_time is None:
        raise UserError(f"There are no step times in {_shown(good)} or {_shown(judged)}, so there is nothing to judge.")
    answer = judge(
        step_time.decision,
        max_slowdown,
        speed=None if speed is None else speed.decision,
        num_unfinished=found.num_unfinished_b,
        is_strict=strict,
    )
    return Gated(answer, found, step_time, speed, max_slowdown)


def _refuse_the_same(baseline: list[Path], candidate: list[Path]) -> None:
    for good in baseline:
        for judged in candidate:
            places = sorted((good.resolve(), judged.resolve()), key=lambda place: len(place.parts))
            if places[1].is_relative_to(places[0]):
                raise UserError(
                    f"{good} and {judged} hold the same runs, which are never slower than themselves. "
                    "Name two folders of which none is inside the other."
                )


def _refuse_files(*paths: Path) -> None:
    for path in paths:
        if path.is_file() and path.suffix in _EXPERIMENT_ENDINGS:
            raise UserError(
                f"{path} is an experiment file, which has nothing measured in it. "
                "Name run directories, or measure both now: foretune compare A.yaml B.yaml --run"
            )


def _shown(paths: list[Path]) -> str:
    return ", ".join(map(str, paths))
