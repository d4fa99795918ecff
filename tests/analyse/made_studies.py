"""Studies with the numbers a test wants, written without training anything."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foretune.core.values import Evaluation
from foretune.core.values.evaluation import Score
from foretune.core.values.run_record import Status
from foretune.record.events import EventLog
from foretune.record.run_directory import RunDirectory
from tests.analyse.made_runs import asked, make_run


def make_part(
    studies: Path,
    configuration: str,
    seed: int,
    *,
    protocol: str = "equal-time",
    setting: str = "as-asked",
    order: Sequence[int] = (0, 0),
    step_s: float = 0.1,
    num_steps: int = 60,
    num_devices: int = 1,
    losses: Sequence[float] | None = None,
    held_out: Mapping[int, float] | None = None,
    counted_s: float | None = None,
    pass_s: float | None = None,
    batch_size: int = 256,
    did_not_fit: Sequence[int] = (),
    status: Status | None = "finished",
    environment: dict[str, Any] | None = None,
    name: str = "hardware",
    scores: Mapping[str, float] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """One run directory in its place below `studies`, with a bench of inference beside it where there is a time.

    `scores`: of an evaluation over 24 prompts, more of which is better.
    """
    folder = studies / name / configuration / setting / f"seed-{seed}"
    length = {"steps": None, "seconds": 2.0} if protocol == "equal-time" else {"steps": num_steps}
    place = {"name": name, "protocol": protocol, "configuration": configuration, "setting": setting, "seed": seed}
    path = make_run(
        folder / f"20260101-000000-{seed:08d}-{configuration}",
        [step_s * (1 + 0.002 * (step % 3)) for step in range(num_steps)],
        experiment=asked(train={**length, "seed": seed}, parallel={"devices": num_devices}),
        environment=environment,
        status=status,
        losses=losses,
        effective={"study": {**place, "order": list(order), **(about or {})}},
    )
    run = RunDirectory(path)
    events = EventLog(run.events)
    for step, loss in (held_out or {}).items():
        events.append("validated", step=step, held_out_loss=loss, samples=[])
    events.close()
    record = run.read_record()
    if record is not None:
        measured = record.measured.model_copy(update={"counted_s": counted_s, "prepare_s": 3.0})
        run.write_record(record.model_copy(update={"measured": measured}))
    if scores is not None:
        write_evaluation(path, scores)
    if pass_s is not None:
        bench = folder / "inference" / "model" / "20260101-000000-abcd" / "bench.json"
        bench.parent.mkdir(parents=True)
        choices = {"batch_size": max([batch_size, *did_not_fit]), "precision": "fp32"}
        times_s = [5 * pass_s, pass_s, pass_s]
        content = {"batch_size": batch_size, "did_not_fit": list(did_not_fit), "choices": choices}
        bench.write_text(json.dumps({**content, "denoising": [{"times_s": times_s}]}))
    return path


def make_speed_part(
    studies: Path,
    configuration: str,
    seed: int,
    step_times_s: Sequence[float],
    *,
    order: int = 0,
    data_share: float | None = None,
    peak_mib: int = 1024,
    **sections: Any,
) -> Path:
    """One run of the speed protocol. Without a `data_share` its data is synthetic."""
    place = {"name": "speeds", "protocol": "speed", "configuration": configuration, "setting": "as-asked"}
    train = {"steps": len(step_times_s), "seed": seed, **sections.pop("train", {})}
    return make_run(
        studies / "speeds" / configuration / "as-asked" / f"seed-{seed}" / f"20260101-{seed:08d}-{configuration}",
        step_times_s,
        experiment=asked(train=train, **sections),
        peak_host_bytes=peak_mib * 2**20,
        data_share=data_share or 0.0,
        effective={
            "is_synthetic": data_share is None,
            "study": {**place, "seed": seed, "order": [0, order], "changes": {}},
        },
    )


def write_evaluation(
    run: Path,
    scores: Mapping[str, float],
    base: Mapping[str, float] | None = None,
    raw: Mapping[str, tuple[float, ...]] | None = None,
) -> None:
    """An evaluation over 24 prompts, without differences. `raw`: of the run, one number a prompt."""
    columns = (("base", base or {}), ("run", scores))
    reported = [
        Score.model_validate(
            {
                "metric": metric,
                "unit": "",
                "higher_is_better": True,
                "column": column,
                "value": value,
                "num_values": 24,
                "repeats_over": "prompts",
                "raw": (raw or {}).get(metric, ()) if column == "run" else (),
            }
        )
        for column, values in columns
        for metric, value in values.items()
    ]
    evaluation = Evaluation(
        evaluation_id="e", subject=run.name, base="base", run_id=run.name, model="m", settings={}, environment_hash="h",
        scores=tuple(reported),
    )  # fmt: skip
    (run / "quality").mkdir()
    (run / "quality" / "evaluation.json").write_text(evaluation.to_json(), encoding="utf-8")
