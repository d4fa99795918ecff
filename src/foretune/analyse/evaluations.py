"""Evaluations as they lie in run directories, and what they say in a sentence."""

from pathlib import Path

from foretune.core.errors import UserError
from foretune.core.input_files import MOST_JSON_BYTES, read_text
from foretune.core.values import Evaluation, Finding, ScoreDifference, WrongFormat

EVALUATION_FILE = Path("quality") / "evaluation.json"
"""Where a run's evaluation is, relative to its directory."""


def evaluation_of(run: Path) -> Evaluation | None:
    """The evaluation of a run directory; None where it has none yet."""
    path = run / EVALUATION_FILE
    try:
        return Evaluation.from_json(read_text(path, MOST_JSON_BYTES, within=run))
    except FileNotFoundError:
        return None
    except WrongFormat as error:
        raise WrongFormat(f"{path}: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def pictures_of(run: Path, evaluation: Evaluation) -> tuple[Path, ...]:
    """The sample grids that are there; those that were not copied along are left out."""
    folder = (run / EVALUATION_FILE).parent
    return tuple(folder / name for name in evaluation.pictures if (folder / name).is_file())


def better_in(evaluation: Evaluation) -> tuple[ScoreDifference, ...]:
    """The metrics in which the run is shown to be better than its base."""
    return tuple(difference for difference in evaluation.differences if difference.answer == "better")


def worse_in(evaluation: Evaluation) -> tuple[ScoreDifference, ...]:
    """The metrics in which the run is shown to be worse than its base."""
    return tuple(difference for difference in evaluation.differences if difference.answer == "worse")


def quality_finding(evaluation: Evaluation, too_few_steps: str | None = None) -> Finding:
    """The answer in one sentence: better, worse, both, or nothing shown. A run of too few steps is called neither.

    Speed is not compared: an evaluation measures it once on each side, which has no interval.
    """
    worse, better = worse_in(evaluation), better_in(evaluation)
    subject, base = evaluation.subject, evaluation.base
    evidence = (evaluation.run_id or evaluation.evaluation_id,)
    if base is None:
        return Finding(
            sentence=f"{subject} was evaluated alone: there is no base beside it.",
            evidence=evidence,
            caveat="To compare it with another model, run: foretune evaluate RUN --against MODEL",
        )
    caveat = "; ".join(evaluation.warnings) or None
    if too_few_steps is not None:
        said = f"{too_few_steps[0].upper()}{too_few_steps[1:]}. Do not read the differences as better or worse."
        return Finding(sentence=said, evidence=evidence, caveat=caveat)
    parts = [
        *([f"worse in {_listed(evaluation, worse)}"] if worse else []),
        *([f"better in {_listed(evaluation, better)}"] if better else []),
    ]
    quality = " and ".join(parts) or _undecided(evaluation)
    beside = f" than {base}" if parts else f" from {base}"
    return Finding(
        sentence=f"{subject}{_other_steps(evaluation)} is {quality}{beside}.",
        evidence=evidence,
        caveat=caveat,
    )


def _other_steps(evaluation: Evaluation) -> str:
    """How many steps the run was sampled with, where the base was sampled with another number of them."""
    steps, base_steps = evaluation.settings.get("steps"), evaluation.settings.get("base_steps")
    if base_steps is None or steps == base_steps:
        return ""
    return f" ({steps} denoising steps instead of {base_steps})"


def _undecided(evaluation: Evaluation) -> str:
    if any(difference.answer == "inconclusive" for difference in evaluation.differences):
        return "not shown to differ in quality"
    return "not different in quality by more than the threshold" if evaluation.differences else "not compared"


def _listed(evaluation: Evaluation, differences: tuple[ScoreDifference, ...]) -> str:
    return ", ".join(f"{difference.metric} ({_change(evaluation, difference)})" for difference in differences)


def _change(evaluation: Evaluation, difference: ScoreDifference) -> str:
    score = evaluation.score(difference.metric)
    assert difference.difference is not None, "what is better or worse differs by something"
    unit = f" {score.unit}" if score is not None and score.unit else ""
    return f"{difference.difference:+.2g}{unit}"
