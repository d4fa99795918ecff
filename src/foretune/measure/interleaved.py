"""Two experiments measured in turns, so that whatever drifts on the machine meets both alike."""

from dataclasses import dataclass
from pathlib import Path

from foretune.config.reading import Asked
from foretune.core.observer import Observer
from foretune.measure.bench import measure_once, new_directory
from foretune.stats.turns import turns


@dataclass(frozen=True)
class InTurns:
    """Where the runs of each side are."""

    a: Path
    b: Path


def measure_in_turns(
    asked_a: Asked,
    asked_b: Asked,
    benches: Path,
    observer: Observer,
    *,
    num_repeats: int,
    num_steps: int,
    is_synthetic: bool = False,
) -> InTurns:
    """Measures each in `num_repeats` fresh processes, a and b alternating; the n-th run of each makes a pair."""
    made = InTurns(new_directory(benches, asked_a.experiment.name), new_directory(benches, asked_b.experiment.name))
    asked = {"a": asked_a, "b": asked_b}
    directories = {"a": made.a, "b": made.b}
    for number, side in enumerate(turns(num_repeats)):
        observer.preparing("measuring in turns", number, 2 * num_repeats)
        measure_once(asked[side], directories[side], num_steps=num_steps, is_synthetic=is_synthetic)
    observer.preparing("measuring in turns", 2 * num_repeats, 2 * num_repeats)
    return made
