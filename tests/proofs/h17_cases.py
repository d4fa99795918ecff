"""Models that are faster and worse, planted; and the same model again, which is neither."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from foretune.analyse.evaluations import EVALUATION_FILE
from foretune.analyse.run_data import gather as gather_runs
from foretune.analyse.run_report import run_report
from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.core.values import Evaluation, ScoreDifference
from foretune.data.buckets import Bucket
from foretune.quality.evidence import SampledEvidence
from foretune.quality.gathering import Encoded, encode_texts, gather
from foretune.quality.measurement import Need, ScoreReading
from foretune.quality.metrics import METRICS
from foretune.quality.request import EvaluationRequest
from foretune.quality.scoring import differences_of, score_of
from foretune.quality.setting import Setting, settle
from foretune.quality.subjects import EvaluatedModel, open_subject
from foretune.stats.enough_steps import FEWEST_TRAINED_STEPS
from foretune.training.sampled_model import SampledModel
from foretune.training.sampling_setup import SamplingSetup
from tests.analyse.made_runs import asked, make_run

BASE_STEPS = 12
NUM_BLOCKS = 6
NUM_PROMPTS = 16
_METRICS = ("captions", "drawing", "loss", "psnr", "ssim", "kid")
_NEEDS: frozenset[Need] = frozenset({"samples", "denoised", "losses"})


@dataclass(frozen=True)
class Planted:
    """One way to be faster at the price of quality."""

    name: str
    damage: Callable[[nn.Module], None]


@dataclass(frozen=True)
class Column:
    """What was measured of one model with one set of seeds."""

    measurements: tuple[ScoreReading, ...]
    evidence: SampledEvidence


def planted() -> list[Planted]:
    """Twenty ways in which models are made faster: weights in few bits, and blocks left out, one or two of them.

    Fewer denoising steps are not among them: this model draws as well in one step as in twelve.
    """
    bits = [Planted(f"weights in {num} bits", partial(_round_to, num, "")) for num in (2, 3, 4)]
    blocks = [Planted(f"weights of blocks in {num} bits", partial(_round_to, num, "blocks.")) for num in (2, 3, 4)]
    single = [Planted(f"without block {place}", partial(_skip, (place,))) for place in range(NUM_BLOCKS)]
    pairs = [*pairwise(range(NUM_BLOCKS)), (0, 3), (0, 5), (2, 5)]
    double = [Planted(f"without blocks {a} and {b}", partial(_skip, (a, b))) for a, b in pairs]
    return [*bits, *blocks, *single, *double]


class Bench:
    """One model and its planted copies, sampled and measured with several sets of seeds, each once."""

    def __init__(self, folder: Path, work: Path) -> None:
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
        mapping = {
            "name": "h17",
            "model": str(folder),
            # The images that it was trained on, a few of them.
            "data": {**recipe["data"], "num_samples": 600, "held_out": 0.2, "cache_dir": str(work)},
            "train": {"steps": 1},
            "parallel": {"device": "cpu"},
        }
        self._experiment = understand(mapping, source="h17").experiment
        self._subject = open_subject(folder)
        self._encoded: Encoded | None = None
        self._known: dict[tuple[str, int], Column] = {}

    def column(self, draw: int, case: Planted | None = None) -> Column:
        """The model as it is, or planted. `draw` decides every seed and noise; the prompts and held-out images stay."""
        key = ("" if case is None else case.name, draw)
        if key not in self._known:
            self._known[key] = self._measured(draw, case)
        return self._known[key]

    def _measured(self, draw: int, case: Planted | None) -> Column:
        subject = self._subject if case is None else self._damaged(case)
        setting = self._setting(draw)
        if self._encoded is None:
            self._encoded = encode_texts(subject, setting, Observer())
        evidence = gather(subject, setting, self._encoded, _NEEDS, BASE_STEPS, Observer(), "run")
        found = [one for name in _METRICS for one in METRICS[name]().measure(setting, evidence, None)]
        return Column(tuple(found), evidence)

    def _setting(self, draw: int) -> Setting:
        validation = self._experiment.validation.model_copy(update={"seed": draw})
        experiment = self._experiment.model_copy(update={"validation": validation})
        data = experiment.data
        assert isinstance(data.resolution, int)
        subject = replace(
            self._subject,
            experiment=experiment,
            trained_size=Bucket(data.resolution, data.resolution),
            num_text_tokens=data.max_text_tokens,
        )
        request = EvaluationRequest(num_prompts=NUM_PROMPTS, first_seed=1000 * draw, num_inference_steps=BASE_STEPS)
        return settle(request, subject, subject, Observer())

    def _damaged(self, case: Planted) -> EvaluatedModel:
        files = DamagedModel(folder=self._subject.folder, run=self._subject.files.run, damage=case.damage)
        return replace(self._subject, key=case.name, files=files)


@dataclass(frozen=True, kw_only=True)
class DamagedModel(SampledModel):
    """A model whose denoiser is damaged after it is loaded."""

    damage: Callable[[nn.Module], None]

    def load_denoiser(self, setup: SamplingSetup) -> nn.Module:
        denoiser = super().load_denoiser(setup)
        with torch.no_grad():
            self.damage(denoiser)
        return denoiser


def compared(base: Column, other: Column) -> tuple[ScoreDifference, ...]:
    return differences_of(base.measurements, other.measurements)


def is_called_worse(differences: Sequence[ScoreDifference]) -> bool:
    return any(difference.answer == "worse" for difference in differences)


def write_runs(folder: Path, columns: Sequence[Column], rank: int, step_s: float, *, is_evaluated: bool) -> None:
    """Runs that differ in their seed, as trainings leave them: their steps took so long, their scores are a column's.

    A rank tells one configuration from the other.
    """
    for seed, column in enumerate(columns):
        path = folder / f"rank-{rank}-{seed}"
        times_s = [step_s * (1 + 0.01 * ((step * 7 + seed * 3) % 5)) for step in range(FEWEST_TRAINED_STEPS)]
        experiment = asked(method={"kind": "lora", "rank": rank}, train={"steps": len(times_s), "seed": seed})
        make_run(path, times_s, experiment=experiment)
        if is_evaluated:
            evaluation = Evaluation(
                evaluation_id=path.name,
                subject=path.name,
                base="base",
                run_id=path.name,
                model="owner/tiny",
                settings={"seeds": "of the draw"},
                environment_hash="0" * 16,
                scores=tuple(score_of(measurement, "run") for measurement in column.measurements),
            )
            (path / EVALUATION_FILE).parent.mkdir()
            (path / EVALUATION_FILE).write_text(evaluation.to_json(), encoding="utf-8")


def chosen_rank(folder: Path, quality: str | None) -> tuple[int | None, str | None]:
    """The rank of the configuration that a report recommends by this metric, and what decided it."""
    (task,) = run_report(gather_runs([folder]), folder, quality=quality).tasks
    chosen = task.recommendation.chosen
    return None if chosen is None else int(chosen.settings["method.rank"]), task.recommendation.decided_by


def is_called_worse_by_means_alone(base: Column, other: Column) -> bool:
    """The control: whichever mean is on the wrong side counts."""
    for before, after in zip(base.measurements, other.measurements, strict=True):
        change = _mean(after) - _mean(before)
        if change < 0 if after.kind.higher_is_better else change > 0:
            return True
    return False


def _mean(measurement: ScoreReading) -> float:
    return sum(sum(group) / len(group) for group in measurement.groups) / len(measurement.groups)


def _round_to(num_bits: int, part: str, denoiser: nn.Module) -> None:
    """Each linear weight whose name has the part in it to 2**bits levels between its extremes."""
    weights = [
        module.weight for name, module in denoiser.named_modules() if isinstance(module, nn.Linear) and part in name
    ]
    assert weights
    for weight in weights:
        step = 2 * weight.abs().max() / (2**num_bits - 1)
        weight.copy_(((weight / step - 0.5).round() + 0.5) * step)


def _skip(places: Sequence[int], denoiser: Any) -> None:
    """These blocks give back what they were given."""
    blocks = [
        *((denoiser.transformer_blocks, number) for number in range(len(denoiser.transformer_blocks))),
        *((denoiser.single_transformer_blocks, number) for number in range(len(denoiser.single_transformer_blocks))),
    ]
    assert len(blocks) == NUM_BLOCKS
    for place in places:
        kind, number = blocks[place]
        kind[number] = _Skipped()


class _Skipped(nn.Module):
    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        return encoder_hidden_states, hidden_states
