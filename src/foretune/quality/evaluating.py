"""Evaluates a run and its base on the same prompts and seeds: samples, measures, compares and saves."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.core.errors import Refused, UserError
from foretune.core.observer import Observer
from foretune.core.units import counted_text
from foretune.core.values import Evaluation, Score
from foretune.core.values.base import content_hash
from foretune.core.values.evaluation import Column
from foretune.quality.evidence import SampledEvidence
from foretune.quality.gathering import Encoded, encode_texts, gather
from foretune.quality.measurement import Metric, Need, ScoreReading
from foretune.quality.metrics import chosen_metrics
from foretune.quality.pictures import write_pictures
from foretune.quality.request import EvaluationRequest
from foretune.quality.scoring import differences_of, score_of
from foretune.quality.setting import Setting, settle
from foretune.quality.subjects import EvaluatedModel, base_of, open_subject
from foretune.record.atomic import write_text
from foretune.record.environment import environment_fingerprint, environment_hash
from foretune.training.sampled_model import require_adapter_to_merge

EVALUATION_NAME = "evaluation.json"
_FEW_PROMPTS = 5


def evaluate_run(run: Path | str, request: EvaluationRequest, observer: Observer) -> Evaluation:
    """Evaluates a run directory, or a folder with a pipeline, and writes the result to its `quality/`."""
    return evaluate_runs((run,), request, observer)[0]


def evaluate_runs(runs: Sequence[Path | str], request: EvaluationRequest, observer: Observer) -> tuple[Evaluation, ...]:
    """Evaluates several runs in turn; if they share base, prompts and data, the base is sampled once."""
    evaluator = Evaluator(observer)
    return tuple(evaluator.evaluate(run, request) for run in runs)


@dataclass(frozen=True)
class MeasuredImages:
    """One column: a model's samples and other evidence, and the scores of the metrics."""

    evidence: SampledEvidence
    measurements: tuple[ScoreReading, ...]


@dataclass(frozen=True)
class ComparedModels:
    """An evaluation with the evidence behind it."""

    evaluation: Evaluation
    base: MeasuredImages | None
    run: MeasuredImages


class Evaluator:
    """Caches the results of a base for the next run that starts from it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._columns: dict[str, MeasuredImages] = {}
        self._encoded: dict[str, Encoded] = {}

    def evaluate(self, run: Path | str, request: EvaluationRequest) -> Evaluation:
        """Evaluates one run and writes the result to its directory."""
        began_s = time.monotonic()
        subject = open_subject(run)
        base = base_of(subject) if request.against is None else open_subject(request.against)
        folder = _folder(subject, request)
        if request.merge:
            require_adapter_to_merge([model.files for model in (subject, base) if model is not None])
        setting = settle(request, subject, _with_data(subject, base), self._observer)
        found = self.compare(subject, base, setting)
        pictures = write_pictures(folder, None if found.base is None else found.base.evidence, found.run.evidence)
        evaluation = found.evaluation.model_copy(update={"pictures": pictures, "wall_s": time.monotonic() - began_s})
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / EVALUATION_NAME, evaluation.to_json())
        return evaluation

    def compare(self, subject: EvaluatedModel, base: EvaluatedModel | None, setting: Setting) -> ComparedModels:
        """Measures and compares both columns, without writing."""
        _refuse_other_families(subject, base)
        metrics, absent = chosen_metrics(setting)
        # Images and speed are always reported.
        needs: frozenset[Need] = frozenset({"samples"})
        needs = needs.union(*(metric.needs for metric in metrics.values()))
        measured_base = None
        if base is not None:
            measured_base = self._base(base, setting, metrics, needs)
        steps = setting.sampling.num_inference_steps
        evidence = gather(subject, setting, self._texts(subject, setting), needs, steps, self._observer, "run")
        measured = self._measured(setting, metrics, evidence, measured_base)
        evaluation = _put_together(setting, subject, base, measured_base, measured, absent)
        return ComparedModels(evaluation, measured_base, measured)

    def _base(
        self, base: EvaluatedModel, setting: Setting, metrics: dict[str, Metric], needs: frozenset[Need]
    ) -> MeasuredImages:
        key = content_hash([base.key, setting.described(), sorted(needs), list(metrics)])
        if key not in self._columns:
            texts = self._texts(base, setting)
            evidence = gather(base, setting, texts, needs, setting.base_steps, self._observer, "base")
            # Only the newest: images of several models would fill the memory.
            self._columns = {key: self._measured(setting, metrics, evidence, None)}
        return self._columns[key]

    def _measured(
        self, setting: Setting, metrics: dict[str, Metric], evidence: SampledEvidence, base: MeasuredImages | None
    ) -> MeasuredImages:
        measurements: list[ScoreReading] = []
        for number, (name, metric) in enumerate(metrics.items()):
            self._observer.preparing(f"measuring {name}", number, len(metrics))
            measurements += metric.measure(setting, evidence, None if base is None else base.evidence)
        return MeasuredImages(evidence, tuple(measurements))

    def _texts(self, subject: EvaluatedModel, setting: Setting) -> Encoded:
        key = content_hash([str(subject.folder), setting.described()])
        if key not in self._encoded:
            self._encoded = {key: encode_texts(subject, setting, self._observer)}
        return self._encoded[key]


def _put_together(
    setting: Setting,
    subject: EvaluatedModel,
    base: EvaluatedModel | None,
    measured_base: MeasuredImages | None,
    measured: MeasuredImages,
    absent: dict[str, str],
) -> Evaluation:
    columns: list[tuple[Column, MeasuredImages]] = [("run", measured)]
    if measured_base is not None:
        columns = [("base", measured_base), *columns]
    scores = [score_of(one, column) for column, found in columns for one in found.measurements]
    scores += [
        Score(metric=name, unit="", higher_is_better=None, column=column, why_absent=why)
        for column, _ in columns
        for name, why in absent.items()
    ]
    environment = environment_hash(environment_fingerprint())
    settings = setting.described()
    return Evaluation(
        evaluation_id=content_hash([subject.key, None if base is None else base.key, settings, environment]),
        subject=subject.label,
        base=None if base is None else base.label,
        run_id=None if subject.run is None else subject.run.run_id,
        model=subject.model,
        settings=settings,
        environment_hash=environment,
        scores=tuple(scores),
        differences=() if measured_base is None else differences_of(measured_base.measurements, measured.measurements),
        images_per_s=measured.evidence.images_per_s,
        base_images_per_s=None if measured_base is None else measured_base.evidence.images_per_s,
        warnings=_warnings(setting),
    )


def _warnings(setting: Setting) -> tuple[str, ...]:
    warnings = []
    num = len(setting.sampling.prompts)
    if num < _FEW_PROMPTS:
        lack = "there is no interval" if num == 1 else "intervals are wide"
        warnings.append(f"{counted_text(num, setting.repeats_over)} only: {lack}, however many seeds there are")
    numbers = setting.setup.quantize.denoiser
    if numbers != "none":
        warnings.append(f"sampled on a base in {numbers}, which differs from the base on disk by its rounding")
    return tuple(warnings)


def _with_data(subject: EvaluatedModel, base: EvaluatedModel | None) -> EvaluatedModel | None:
    """Returns the run that provides the data: the subject, or the base if only that is a run."""
    if subject.experiment is not None:
        return subject
    return base if base is not None and base.experiment is not None else None


def _refuse_other_families(subject: EvaluatedModel, base: EvaluatedModel | None) -> None:
    if base is not None and base.family.name != subject.family.name:
        raise Refused(
            f"{subject.label} is a {subject.family.name} model and {base.label} a {base.family.name} model: their "
            "noise and their text differ, so they cannot be put side by side. Compare it with a "
            f"{subject.family.name} model: foretune evaluate RUN --against MODEL"
        )


def _folder(subject: EvaluatedModel, request: EvaluationRequest) -> Path:
    if request.output is not None:
        return request.output
    if subject.run is None:
        raise UserError(
            f"{subject.label} is not a run directory, so it is not clear where to write the evaluation. "
            f"Run: foretune evaluate {subject.label} --output quality"
        )
    return subject.run.path / "quality"
