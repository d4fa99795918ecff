"""R9 on two simulated GPUs: a signal to the command, wherever it meets its two processes, is followed soon; all save,
and at most one step is lost.
"""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from foretune.record.checking import check_run
from tests.conftest import ProofSize
from tests.proofs.ends import end_of
from tests.proofs.killing import newest_run
from tests.proofs.lost_ranks import TwoProcesses
from tests.proofs.rotation import how_to_repeat, turn
from tests.proofs.stopped_places import ANY, FINISHED, LEFT
from tests.simulated.engines import ENGINES
from tests.turns import NUM_TURNS
from tests.waiting import HANG_S, waited_until

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

pytestmark = [pytest.mark.proof, pytest.mark.simulated, pytest.mark.slow, pytest.mark.takes_turns]

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PLACES = (*LEFT, *FINISHED, ANY)
_MOST_PROCESSOR_S = 10.0
_START_UP_S = 3.0
_INTERRUPTED = 130


@dataclass
class Stops:
    """What was seen of all signals of an engine."""

    num: int = 0
    num_runs: int = 0
    places: list[str] = field(default_factory=list)
    most_lost: int = 0
    """Steps that had to be made again after one signal."""
    most_processor_s: float = 0.0
    """Of all processes, from a signal until the last of them had ended."""
    most_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


@pytest.mark.parametrize("engine", ["DDP, block swap", "FSDP2"])
def test_r9_signals_are_followed_by_both_processes_and_cost_at_most_one_step(
    engine: str,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    forked_python: "ForkedPython",
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    num_signals = proof_size(10, 1)
    changes: dict[str, Any] = {
        "train": {"steps": proof_size(28, 10)},
        "validate": {"every": 2, "prompts": ["a red circle"], "num_inference_steps": 1},
        # Rarely, so that what is saved is saved because of the signal.
        "save": {"every": proof_size(18, 6), "keep": 2},
    }
    sections = ENGINES[engine] | {name: {**ENGINES[engine].get(name, {}), **more} for name, more in changes.items()}

    def started(name: str, held_at: str | None = None) -> TwoProcesses:
        return TwoProcesses(forked_python, tiny_pipeline("flux"), tmp_path / name, held_at=held_at, **sections)

    whole = started("whole")
    out, _ = whole.process.communicate(timeout=HANG_S)
    assert whole.process.returncode == 0, out
    # A test that takes turns runs in every twelfth, each time with the next place.
    first = 0 if num_signals > 1 else (turn() // NUM_TURNS) % len(_PLACES)
    rng, stops = random.Random(f"r9 {engine}"), Stops()
    while stops.num < num_signals:
        two: TwoProcesses | None = None
        for place in _PLACES[first:][: num_signals - stops.num]:
            if two is None:
                two = started(str(stops.num_runs), place)
            else:
                two.go_on(place)
            _stop(two, place, _SIGNALS[(first + stops.num) % len(_SIGNALS)], rng, stops)
        assert two is not None
        two.go_on()
        out, _ = two.process.communicate(timeout=HANG_S)
        assert two.process.returncode == 0, out
        stops.wrong += end_of(two.run).differences(end_of(whole.run))
        stops.wrong += [str(fault) for fault in check_run(two.run.path).faults]
        stops.num_runs += 1
    report_figure(
        f"{engine}: {stops.num} signals to two processes ({', '.join(stops.places)}): at most {stops.most_lost} steps "
        f"lost, at most {stops.most_processor_s:.1f} s of processor time and {stops.most_s:.1f} s until all had ended, "
        f"0 hangs ({how_to_repeat(turn())})"
    )
    assert not stops.wrong, "\n".join(stops.wrong)
    assert stops.most_lost <= 1
    assert stops.most_processor_s <= _MOST_PROCESSOR_S


def _stop(two: TwoProcesses, place: str, number: signal.Signals, rng: random.Random, stops: Stops) -> None:
    if place == ANY:
        time.sleep(rng.uniform(0, _START_UP_S))
    else:
        waited_until(lambda: two.is_held or two.process.poll() is not None)
        assert two.is_held, two.process.communicate()[0]
    used_s, since_s = two.processor_s(), time.monotonic()
    two.process.send_signal(number)
    out, _ = two.process.communicate(timeout=HANG_S)
    two.wait_until_all_ended()
    stops.num += 1
    stops.places.append(place)
    stops.most_processor_s = max(stops.most_processor_s, two.processor_s() - used_s)
    stops.most_s = max(stops.most_s, time.monotonic() - since_s)
    code = two.process.returncode
    run = newest_run(two.runs)
    events = [] if run is None else two.events("started", "step")
    has_stepped = bool(events) and events[-1]["kind"] == "step"
    # Before it starts the two processes, the command ends as every other does.
    if code not in ((_INTERRUPTED,) if has_stepped else (_INTERRUPTED, -number)):
        stops.wrong.append(f"{place}: {number.name} ended it with {code}: {out[-500:]}")
    if run is not None:
        done = max((event["step"] + 1 for event in events if event["kind"] == "step"), default=0)
        newest = two.newest_checkpoint().removeprefix("step-")
        stops.most_lost = max(stops.most_lost, done - int(newest or 0))
