"""R9: a signal to stop, wherever it meets a run, is followed soon, and at most one step is lost."""

import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from foretune.record.checking import check_run
from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.ends import End, end_of
from tests.proofs.fork_server import Child, ForkServer
from tests.proofs.killing import forked, newest_run, wait, wait_until
from tests.proofs.partial_counts import PartialCounts
from tests.proofs.resume_cells import Cell
from tests.proofs.stopped_places import ANY, FINISHED, LEFT

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PLACES = (*LEFT, *FINISHED, ANY)
_NUM_STEPS = 14
_MOST_PROCESSOR_S = 10.0
_START_UP_S = 1.5
_INTERRUPTED = 130


@dataclass
class Stops:
    """What was seen of one run, or of several."""

    num: int = 0
    num_before_run: int = 0
    num_by_place: dict[str, int] = field(default_factory=dict)
    most_lost: int = 0
    """Steps that had to be made again after one signal."""
    most_processor_s: float = 0.0
    """From a signal to the end of the process."""
    wrong: list[str] = field(default_factory=list)

    def __add__(self, other: "Stops") -> "Stops":
        places = self.num_by_place.keys() | other.num_by_place.keys()
        return Stops(
            self.num + other.num,
            self.num_before_run + other.num_before_run,
            {place: self.num_by_place.get(place, 0) + other.num_by_place.get(place, 0) for place in sorted(places)},
            max(self.most_lost, other.most_lost),
            max(self.most_processor_s, other.most_processor_s),
            self.wrong + other.wrong,
        )


@pytest.fixture(scope="module")
def whole(tiny_models: TinyModels, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> End:
    """The uninterrupted run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    file = _write_experiment(folder, tiny_models)
    assert wait(forked(fork_server)(["train", str(file), "--runs", str(folder)])) == 0
    return end_of(RunDirectory.open(folder / "cell" / "latest"))


def test_r9_signals_are_followed_and_cost_at_most_one_step(
    whole: End,
    tiny_models: TinyModels,
    fork_server: ForkServer,
    tmp_path: Path,
    partial_counts: PartialCounts,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    num_signals = proof_size(100, 7)
    seen, number = Stops(), 0
    while seen.num < num_signals:

        def count(number: int = number, first: int = seen.num) -> dict[str, Any]:
            return asdict(_stopped_until_done(tmp_path / str(number), tiny_models, fork_server, whole, first))

        seen += Stops(**partial_counts.part(f"run {number}", count))
        number += 1
    partial_counts.forget()
    places = ", ".join(f"{place} {num}" for place, num in seen.num_by_place.items())
    report_figure(
        f"{seen.num} signals in {number} runs ({places}; {seen.num_before_run} before there was a run): at most "
        f"{seen.most_lost} steps lost, at most {seen.most_processor_s:.1f} s of processor time until the process left"
    )
    assert not seen.wrong, "\n".join(seen.wrong)
    assert seen.most_lost <= 1
    assert seen.most_processor_s <= _MOST_PROCESSOR_S
    assert set(seen.num_by_place) == set(_PLACES), "a place that no signal met proves nothing"


def _stopped_until_done(folder: Path, models: TinyModels, server: ForkServer, whole: End, first: int) -> Stops:
    """Starts or resumes one run with a signal at each place in turn, then lets it end."""
    folder.mkdir()
    file, runs = _write_experiment(folder, models, cache=folder / "cache"), folder / "runs"
    rng, stops = random.Random(f"r9 {first}"), Stops()
    for place in _PLACES:
        run = newest_run(runs)
        arguments = ["resume", str(run.path)] if run else ["train", str(file), "--runs", str(runs)]
        sign, released = folder / f"met {place}", folder / f"released {place}"
        process = server.start(
            "tests.proofs.children:held_command_line",
            arguments=arguments,
            place=place,
            sign=str(sign),
            released=str(released),
        )
        if place == ANY:
            time.sleep(rng.uniform(0, _START_UP_S))
        else:
            wait_until(sign.exists, process, "it does not come to the place")
        if process.poll() is not None:
            stops.wrong.append(f"{place}: it ended with {process.poll()} before the signal")
            break
        number = _SIGNALS[(first + stops.num) % len(_SIGNALS)]
        stops += _struck(process, number, place, released, runs)
    run = newest_run(runs)
    assert run is not None
    assert wait(forked(server)(["resume", str(run.path)])) == 0
    stops.wrong += end_of(run).differences(whole)
    stops.wrong += [str(fault) for fault in check_run(run.path).faults]
    return stops


def _struck(process: Child, number: signal.Signals, place: str, released: Path, runs: Path) -> Stops:
    used_s = process.processor_s()
    process.send(number)
    if place in (*FINISHED, ANY):
        released.touch()
    code = wait(process)
    run = newest_run(runs)
    seen = Stops(1, int(run is None), {place: 1}, most_processor_s=process.processor_s() - used_s)
    # Before the training begins a signal ends the process as it does every other: there is nothing to save.
    if code not in (_INTERRUPTED, -number):
        seen.wrong.append(f"{place}: {number.name} ended it with {code}")
    if run is not None:
        done = [int(event["step"]) + 1 for event in read_events(run.events) if event["kind"] == "step"]
        saved = [int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*")]
        seen.most_lost = max(0, max(done, default=0) - max(saved, default=0))
    return seen


def _write_experiment(folder: Path, models: TinyModels, cache: Path | None = None) -> Path:
    cell = Cell.from_row("flux lora fp32 1 ema 0 0 cosine cached validates dies-after-step")
    experiment = cell.experiment(str(models.path(cell.family)), str(cache or models.cache), "cpu")
    experiment["train"]["steps"] = _NUM_STEPS
    experiment["validate"] |= {"every": 2, "prompts": ["a red circle"], "num_inference_steps": 1}
    # Rarely, so that what is saved is saved because of the signal.
    experiment["save"] = {"every": 10, "keep": 2}
    file = folder / "experiment.yaml"
    # JSON is YAML.
    file.write_text(json.dumps(experiment))
    return file
