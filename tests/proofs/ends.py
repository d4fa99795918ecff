"""What is left of a training: the hashes of its last checkpoint and the numbers of every step."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory

Numbers = tuple[float, float | str | None, float]
"""Loss, gradient norm and learning rate of a step. A norm that overflowed stands there as text."""


@dataclass(frozen=True)
class End:
    """How a run ended. Two runs are the same if their ends are equal."""

    checkpoint: str
    hashes: dict[str, str]
    """By file of the last checkpoint: weights, optimizer, moving average, scaler, step."""
    numbers: dict[int, set[Numbers]]
    """By step; a step that is repeated after a resume must give the same ones again."""
    held_out_losses: tuple[tuple[int, float], ...]

    def differences(self, other: "End") -> list[str]:
        """What is not the same, by name."""
        found = ["the last step"] if self.checkpoint != other.checkpoint else []
        found += [name for name in self.hashes | other.hashes if self.hashes.get(name) != other.hashes.get(name)]
        steps = sorted(self.numbers | other.numbers)
        found += [f"numbers of step {step}" for step in steps if self.numbers.get(step) != other.numbers.get(step)]
        return found + (["held-out losses"] if self.held_out_losses != other.held_out_losses else [])


def end_of(run: RunDirectory) -> End:
    """The end of a run that has finished."""
    record = run.read_record()
    assert record is not None, f"{run.path} has no record"
    assert record.outcome.status == "finished", record.outcome
    newest = max(run.checkpoints.glob("step-*"))
    numbers: dict[int, set[Numbers]] = {}
    for event in read_events(run.events):
        if event["kind"] == "step":
            numbers.setdefault(event["step"], set()).add((event["loss"], event["grad_norm"], event["lr"]))
    return End(newest.name, hashes_of(newest), numbers, record.measured.held_out_losses)


def hashes_of(folder: Path) -> dict[str, str]:
    """By name of each file in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
