"""Run directories with everything a report looks at, written by the program's own writers without training anything."""

import json
import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.core.values import Evaluation, Outcome, Plan, RunRecord
from foretune.core.values.evaluation import Score, ScoreDifference
from foretune.core.values.plan import PhaseMemory
from foretune.core.values.plan_time import StepTime
from foretune.core.values.run_record import Measured, Status
from foretune.record.environment import environment_hash
from foretune.record.events import EventLog
from foretune.record.run_directory import RunDirectory

ENVIRONMENT: dict[str, Any] = {
    "foretune": "0", "python": "3.11", "cpu": "one", "num_usable_cpus": 2, "memory_bytes": 2**34,
    "packages": {"torch": "2.9"}, "source": {"commit": "1a2b", "dirty": False},
}  # fmt: skip

PLANNED_SHARE = 0.8
"""Of the time that steps take: plans are a quarter too fast."""


def picture(size_px: int = 8, shade: int = 120) -> bytes:
    """A grey PNG."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", size_px, size_px, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + bytes([shade]) * size_px for _ in range(size_px))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def plan(process_bytes: int, experiment: str = "0" * 16, step_s: float = 0.1) -> Plan:
    time = StepTime(
        step_s=step_s, low_s=0.8 * step_s, high_s=1.4 * step_s, shares={"compute": 1.0}, bound_by="compute",
        evidence="measured here", samples_per_s=2 / step_s, model_flops=1e9, hardware_flops=1e9,
        model_utilisation=None, hardware_utilisation=None,
    )  # fmt: skip
    return Plan(
        experiment=experiment, time=time, model="tiny", device="here", world_size=1, sizes={"samples": 2},
        phases=(PhaseMemory(phase="training step", device_bytes_by_part={"activations": process_bytes // 2}),),
        worst_phase="training step", allocated_bytes=process_bytes // 2, reserved_bytes=process_bytes // 2,
        process_low_bytes=process_bytes, process_bytes=process_bytes, process_high_bytes=process_bytes,
        usable_bytes=2**34, error_band=0.05, verdict="fits",
    )  # fmt: skip


def whole_run(
    path: Path,
    *,
    method: dict[str, Any] | None = None,
    seed: int = 0,
    step_s: float = 0.1,
    final: float = 1.0,
    num_steps: int = 60,
    status: Status = "finished",
    reason: str | None = None,
    environment: dict[str, Any] | None = None,
    metrics: Sequence[str] = ("caption accuracy",),
    prompts: Sequence[str] = ("a small red circle on blue",),
    model: str = "owner/tiny",
    grid: str = "grid.png",
    warnings: Sequence[str] = (),
    peak_bytes: int = 2**29,
) -> Path:
    """A run at a path; times, losses and scores vary a little with the seed, as they do."""
    draw = random.Random(f"{path.name} {seed} {step_s} {final}")
    experiment = Experiment.model_validate(
        {
            "model": model,
            "method": method or {"kind": "lora", "rank": 8},
            "data": {"kind": "shapes"},
            "train": {"steps": num_steps, "batch_size": 2, "seed": seed},
            "validate": {"prompts": list(prompts), "num_inference_steps": 2},
        }
    )
    environment = environment or ENVIRONMENT
    path.mkdir(parents=True)
    run = RunDirectory(path)
    effective = {"data_fingerprint": "d", "base_checksum": "b", "num_train_samples": 64, "resolution_px": 32}
    run.write_experiment({}, experiment, effective)
    run.write_environment(environment)
    run.write_plan(plan(round(peak_bytes * 0.93), experiment.whole_hash(), PLANNED_SHARE * step_s))
    events = EventLog(run.events)
    events.append("started", first_step=0, environment=environment)
    held_out, total_s = [], 0.0
    for step in range(num_steps):
        if step % (num_steps // 2) == 0:
            held_out.append((step, final + 1 - step / num_steps + draw.gauss(0, 0.01)))
            events.append("validated", step=step, held_out_loss=held_out[-1][1], samples=[])
            events.append("paused", step=step, phases_s={"validation": step_s * 3})
        took_s = step_s * (1 + draw.gauss(0, 0.02))
        total_s += took_s
        phases = {"forward": took_s * 0.4, "backward": took_s * 0.6}
        loss = final + 2 / (step + 1) + draw.gauss(0, 0.02)
        events.append("step", step=step, loss=loss, step_s=took_s, phases_s=phases)
    held_out.append((num_steps, final + draw.gauss(0, 0.01)))
    events.append("validated", step=num_steps, held_out_loss=held_out[-1][1], samples=[])
    events.append("ended", status=status, steps_done=num_steps, reason=reason)
    events.close()
    (path / "samples").mkdir()
    for step in (0, num_steps):
        for index in range(len(prompts)):
            (path / "samples" / f"step-{step:09d}-{index}.png").write_bytes(picture(shade=50 + step + index))
    _evaluate(path, draw, metrics, prompts, environment, final, grid)
    measured = Measured(
        num_step_times=num_steps,
        samples_per_s=2 * num_steps / total_s,
        peak_host_bytes=peak_bytes + seed * 2**16,
        held_out_losses=tuple(held_out),
    )
    run.write_record(
        RunRecord(
            run_id=run.run_id, question_hash="0" * 16, experiment_hash=experiment.whole_hash(),
            outcome=Outcome(status=status, steps_done=num_steps, reason=reason), plan=run.read_plan(),
            environment=environment, environment_hash=environment_hash(environment), measured=measured,
            num_trainable_params=1, num_params=2, wall_s=num_steps * step_s, warnings=tuple(warnings),
        )
    )  # fmt: skip
    return path


def _evaluate(
    path: Path,
    draw: random.Random,
    metrics: Sequence[str],
    prompts: Sequence[str],
    environment: Any,
    final: float,
    grid: str,
) -> None:
    scores, differences = [], []
    for metric in metrics:
        base, after = 0.5, 1 / (1 + final) + draw.gauss(0, 0.003)
        for column, value in (("base", base), ("run", after)):
            scores.append(
                Score.model_validate(
                    {"metric": metric, "unit": "", "higher_is_better": True, "column": column, "value": value,
                     "low": value - 0.02, "high": value + 0.02, "confidence": 0.95, "num_values": 8}
                )
            )  # fmt: skip
        differences.append(
            ScoreDifference(
                metric=metric, difference=after - base, low=after - base - 0.03, high=after - base + 0.03,
                confidence=0.95, answer="better" if after > base + 0.03 else "inconclusive", num_pairs=8,
            )
        )  # fmt: skip
    evaluation = Evaluation(
        evaluation_id="e", subject=path.name, base="base", run_id=path.name, model="owner/tiny",
        settings={"prompts": list(prompts)}, environment_hash=environment_hash(environment), scores=tuple(scores),
        differences=tuple(differences), pictures=(grid,),
    )  # fmt: skip
    (path / "quality").mkdir()
    (path / "quality" / "evaluation.json").write_text(evaluation.to_json(), encoding="utf-8")
    (path / "quality" / grid).write_bytes(picture(size_px=16))


def two_configurations(folder: Path, num_seeds: int = 3, **others: Any) -> Path:
    """Full and LoRA, some seeds each: LoRA is faster, full is better."""
    for seed in range(num_seeds):
        whole_run(folder / f"full-{seed}", method={"kind": "full"}, seed=seed, step_s=0.12, final=0.8, **others)
        whole_run(folder / f"lora-{seed}", seed=seed, step_s=0.08, final=1.4, **others)
    return folder


def many_copies(folder: Path, num: int, pattern: Path) -> None:
    """Copies of a run under other names, seeds and ranks, as a large sweep leaves them; pictures in each."""
    texts = {
        name: (pattern / name).read_text(encoding="utf-8")
        for name in ("experiment.yaml", "events.jsonl", "record.json", "environment.json", "plan.json")
    }
    run_id = json.loads(texts["record.json"])["run_id"]
    for number in range(num):
        rank, seed = 2 + number // 3 % 340, number % 3
        path = folder / f"rank-{rank}" / f"{number:06d}"
        (path / "samples").mkdir(parents=True)
        for name, text in texts.items():
            changed = (
                text.replace(run_id, path.name)
                .replace("rank: 8", f"rank: {rank}")
                .replace("seed: 0\n    max_grad", f"seed: {seed}\n    max_grad")
            )
            (path / name).write_text(changed, encoding="utf-8")
        for sample in (pattern / "samples").glob("*.png"):
            (path / "samples" / sample.name).write_bytes(sample.read_bytes())
