"""Every file that a release ever wrote is read, and no format changes unsaid. How to change one: `formats.py`."""

import json
from typing import Literal

import pytest

from foretune.choices.experiment import Experiment
from foretune.core.values import Comparison, Evaluation, Finding, Interval, Plan, RunRecord, StepTrace, Value
from tests.core.formats import FROZEN, VALUES, frozen_file, shape, shape_file

VERSIONS = [(name, version) for name, value in VALUES.items() for version in range(1, value.format_version() + 1)]
each_version = pytest.mark.parametrize(("name", "version"), VERSIONS, ids=[f"{n}-v{v}" for n, v in VERSIONS])
each_value = pytest.mark.parametrize("name", VALUES)


def read(name: str, version: int) -> Value:
    return VALUES[name].from_json(frozen_file(name, version).read_text(encoding="utf-8"))


def current(name: str) -> Value:
    return read(name, VALUES[name].format_version())


def test_every_value_of_the_package_is_frozen() -> None:
    in_package = {value.__name__ for value in Value.__subclasses__() if value.__module__.startswith("foretune.")}
    assert in_package == set(VALUES)
    assert len(VALUES) == 9


def test_there_is_a_frozen_file_for_every_version_and_no_other() -> None:
    wanted = {path.name for version in VERSIONS for path in (frozen_file(*version), shape_file(*version))}
    assert {path.name for path in FROZEN.iterdir()} == wanted, "type: python -m tests.core.formats"


@each_version
def test_a_frozen_file_is_of_the_version_in_its_name(name: str, version: int) -> None:
    stored = json.loads(frozen_file(name, version).read_text(encoding="utf-8"))
    assert (stored["format"], stored["format_version"]) == (name, version)


@each_version
def test_every_version_is_read_and_says_the_same(name: str, version: int) -> None:
    assert read(name, version).to_mapping() == current(name).to_mapping()


@each_value
def test_the_current_version_is_written_as_it_was_frozen(name: str) -> None:
    frozen = frozen_file(name, VALUES[name].format_version()).read_text(encoding="utf-8")
    assert current(name).to_json() == frozen


@each_value
def test_no_format_changes_without_a_new_version(name: str) -> None:
    frozen = json.loads(shape_file(name, VALUES[name].format_version()).read_text(encoding="utf-8"))
    assert shape(VALUES[name]) == frozen, (
        f"the format of {name} changed: begin a new version, see tests/core/formats.py"
    )


def test_the_experiment_is_read_as_it_was_meant() -> None:
    experiment = current("Experiment")
    assert isinstance(experiment, Experiment)
    assert (experiment.name, experiment.model, experiment.method.kind) == ("paintings", "flux.1-dev", "lora")
    assert experiment.data.kind == "folder"
    assert [(f.path, f.repeats, f.trigger) for f in experiment.data.all_folders()] == [
        ("./paintings", 3, "in the style of sks"),
        ("./sketches", 1, None),
    ]
    assert experiment.train.ema is not None
    assert experiment.train.ema.decay == 0.995
    assert experiment.optimizer.betas == (0.9, 0.99)
    assert experiment.validation.prompts == ("a harbour at dusk", "ein Café")
    assert experiment.accept == ("distilled-base",)


def test_the_plan_is_read_as_it_was_meant() -> None:
    plan = current("Plan")
    assert isinstance(plan, Plan)
    assert [phase.phase for phase in plan.phases] == ["training step", "caching latents"]
    assert plan.phases[0].device_bytes == 23_802_855_936 + 1_618_483_712
    assert plan.phases[1].disk_bytes is None
    assert (plan.verdict, plan.worst_phase, plan.error_band) == ("does not fit", "training step", 0.045)
    assert [(remedy.settings, remedy.verdict) for remedy in plan.remedies] == [
        ({"levers.gradient_checkpointing": "1"}, "fits")
    ]


def test_the_record_is_read_as_it_was_meant() -> None:
    record = current("RunRecord")
    assert isinstance(record, RunRecord)
    assert (record.outcome.status, record.outcome.steps_done) == ("out of memory", 250)
    assert record.plan == current("Plan")
    assert record.measured.held_out_losses == ((0, 0.52), (250, 0.41))
    assert record.measured.peak_host_bytes is None
    assert record.environment["packages"] == {"torch": "2.13.0", "datasets": None}


def test_the_trace_is_read_as_it_was_meant() -> None:
    trace = current("StepTrace")
    assert isinstance(trace, StepTrace)
    assert trace.growths[1].at((2, 4096, 512, 16)) == 2 * (1536 * 4096 + 6144 * 512)
    (kind,) = trace.kinds
    assert kind.of_block(0, 19) == kind.first[0]
    assert kind.of_block(9, 19) == kind.middle
    assert kind.of_block(18, 19) == kind.last[0]


def test_the_comparison_and_the_finding_are_read_as_they_were_meant() -> None:
    comparison = current("Comparison")
    assert isinstance(comparison, Comparison)
    assert (comparison.answer, comparison.ratio) == ("no difference shown", 1.043)
    assert comparison.interval == Interval(low=0.981, high=1.112, confidence=0.95)
    finding = current("Finding")
    assert isinstance(finding, Finding)
    assert finding.evidence[1].endswith("/events.jsonl")
    assert finding.caveat == "One card, one resolution."


def test_the_evaluation_is_read_as_it_was_meant() -> None:
    evaluation = current("Evaluation")
    assert isinstance(evaluation, Evaluation)
    accuracy = evaluation.score("caption accuracy")
    assert accuracy is not None
    assert (accuracy.value, accuracy.low, accuracy.num_values, accuracy.repeats_over) == (0.75, 0.55, 4, "prompts")
    absent = evaluation.score("ms-ssim", "base")
    assert absent is not None
    assert (absent.value, absent.why_absent) == (None, "images of 32 px are too small for its five scales")
    difference = evaluation.difference("caption accuracy")
    assert difference is not None
    assert (difference.answer, difference.difference) == ("worse", -0.25)
    assert evaluation.difference("ms-ssim") is None
    assert (evaluation.images_per_s, evaluation.base_images_per_s) == (14.2, 7.1)


class WithMore(Finding):
    author: str | None = None


class WithAnotherType(Finding):
    caveat: int | None = None  # type: ignore[assignment]


class WithAnotherAnswer(Comparison):
    answer: Literal["a is higher", "b is higher"]


class WithMoreInside(RunRecord):
    plan: Finding | None = None  # type: ignore[assignment]


@pytest.mark.parametrize("changed", [WithMore, WithAnotherType, WithAnotherAnswer, WithMoreInside])
def test_a_change_of_format_is_seen(changed: type[Value]) -> None:
    before = changed.__base__
    assert before is not None
    assert shape(changed) != shape(before)


def test_a_remark_is_no_change_of_format() -> None:
    class WithAnotherRemark(Finding):
        """Said in other words."""

        caveat: str | None = "there is always one"

    assert shape(WithAnotherRemark) == shape(Finding)
