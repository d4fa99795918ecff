"""The ten operators that take the longest."""

from foretune.config.reading import understand
from foretune.measure.bench_request import OperatorsRequest
from foretune.measure.fresh_process import ask_fresh_process
from foretune.studies.named.base import Study, StudyAxis, StudyPoint, StudyRequest, StudyResult, StudyValue
from foretune.studies.named.small_models import experiment_on

_NUM_LONGEST = 10


def _run(request: StudyRequest) -> StudyResult:
    folder, num_steps = request.model_folder("flux"), 3 if request.is_quick else 10
    asked = understand(dict(experiment_on(folder, "operators", batch_size=2)), source="The study")
    answer = ask_fresh_process(
        OperatorsRequest(
            asked={**asked.as_asked, "train": {**asked.as_asked["train"], "steps": num_steps + 3}}, num_steps=num_steps
        ),
        request.observer,
    )
    total_s = answer["total_s"]
    longest = sorted(answer["operators"], key=lambda row: -row["self_s"])[:_NUM_LONGEST]
    points = tuple(
        StudyPoint(
            label=row["name"],
            values={
                "share": StudyValue(row["self_s"] / total_s),
                "self_ms": StudyValue(row["self_s"] / num_steps * 1000),
                "calls": StudyValue(row["count"] / num_steps),
            },
            num_runs=1,
            num_values=num_steps,
        )
        for row in longest
    )
    covered = sum(row["self_s"] for row in longest) / total_s
    words = (
        f"the ten longest of {len(answer['operators'])} operators take {covered:.0%} of the time; "
        f"{longest[0]['name']} takes {longest[0]['self_s'] / total_s:.0%}"
    )
    return StudyResult(
        name="operators",
        title="The ten longest operators of a training step",
        setting="operator",
        is_line=False,
        is_sideways=True,
        axes=(
            StudyAxis(key="self_ms", title="time in a step, without what it calls, ms"),
            StudyAxis(key="calls", title="calls in a step"),
        ),
        points=points,
        findings=(words,),
        measured_with={"model": str(folder), "num_steps": num_steps, "data": "synthetic"},
        warnings=("Under the profiler every operator is slower; shares are what it shows, not the speed.",),
    )


OPERATORS = Study(
    name="operators",
    title="The ten longest operators of a training step",
    run=_run,
    num_processes=lambda _: 1,
    extra_s=lambda _: 10,
)
