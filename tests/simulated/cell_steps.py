"""A few steps of a cell on the simulated GPU, by the code that trains, and what the host waited for in each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.choices.matrix import Cell
from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.core.values import Outcome
from foretune.record.run_directory import RunDirectory
from foretune.training.instruments import Instrument
from foretune.training.preparing import Prepared, prepare
from foretune.training.session import Session
from tests.matrix.running import mapping_of
from tests.simulated.host_waits import StepFacts

Waits = list[tuple[str, str]]
"""What for, and the stack."""


@dataclass(frozen=True)
class Steps:
    """What a cell's steps did."""

    outcome: Outcome
    by_step: Sequence[tuple[StepFacts, Waits]]


class WaitsOfSteps:
    """An instrument of the loop: between its two calls is one step, from the first batch to the last report."""

    def __init__(self, device: Any, prepared: Prepared) -> None:
        self.by_step: list[tuple[StepFacts, Waits]] = []
        self._device, self._prepared = device, prepared
        self._facts = facts_of(prepared)
        self._scale = 0.0

    def before_step(self, step: int) -> None:
        self._scale = self._prepared.step.scaler.get_scale()
        self._device.syncs(True)

    def after_step(self, step: int) -> None:
        waits = self._device.syncs(True)
        updates = self._prepared.step.scaler.get_scale() >= self._scale
        is_first_update = updates and not any(facts.updates for facts, _ in self.by_step)
        facts = replace(self._facts, is_first=not self.by_step, is_first_update=is_first_update, updates=updates)
        self.by_step.append((facts, waits))

    def close(self) -> None:
        pass


def facts_of(prepared: Prepared) -> StepFacts:
    weights = list(prepared.step.trained.values())
    effective = prepared.effective
    return StepFacts(
        experiment=prepared.experiment,
        family=prepared.family.name,
        num_weights=len(weights),
        num_matrices=sum(weight.dim() > 1 for weight in weights),
        num_ema_groups=0 if prepared.step.ema is None else len(prepared.step.ema._groups),
        num_attentions=effective["num_blocks"] + effective["num_checkpointed_blocks"],
    )


def mapping_on_gpu(cell: Cell, model: Path, work: Path) -> dict[str, Any]:
    """The experiment of a cell: accumulation and adapter dropout wherever the cell has them, no validation."""
    mapping = mapping_of(cell, model, work)
    mapping["parallel"] = {"device": "cuda"}
    if cell[-1] not in ("none", "fused_backward"):
        mapping["train"]["gradient_accumulation"] = 2
    if mapping["method"]["kind"] == "lora":
        mapping["method"]["dropout"] = 0.1
    return mapping


def run_steps(mapping: Mapping[str, Any], folder: Path, device: Any, *others: Instrument) -> Steps:
    """Prepares a run of the experiment and makes its steps, without checkpoints."""
    asked = understand(dict(mapping), source="cell")
    prepared = prepared_at(asked.experiment, folder)
    run = RunDirectory.create(folder.parent / "runs", "cell")
    run.write_experiment(asked.as_asked, asked.experiment, prepared.effective)
    session = Session(run, prepared, Observer(), steps_only=True)
    waits = WaitsOfSteps(device, prepared)
    session.loop.instruments = (*others, waits)
    return Steps(session.run_loop(), waits.by_step)


def prepared_at(experiment: Experiment, folder: Path) -> Prepared:
    return prepare(experiment, folder, Observer())
