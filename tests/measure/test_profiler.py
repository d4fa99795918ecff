"""The profiler looks and changes nothing: same losses, a trace that others can read, and no fault that ends a run."""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.analyse import trace_events
from foretune.analyse.run_data import read_run
from foretune.analyse.run_index.run_row import row_of
from foretune.analyse.trace_digest import digest, newest_trace
from foretune.measure.profiling import NUM_STEPS_BEFORE, profile
from foretune.training.profiling import instrument, marks
from foretune.training.profiling.trace_file import write_trace
from tests.training.short_runs import Recording, events_of, losses_of, short_asked, short_run

TinyPipeline = Callable[..., Path]
# The names that TensorBoard's plugin takes for traces, as we know them: the plugin itself is not installed here.
PLUGIN_NAME = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")
LOOK = {"at_step": 2, "steps": 2}


def content_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(path.read_bytes())))


def test_losses_are_the_same_with_and_without(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    sections: dict[str, Any] = {
        "method": {"kind": "lora", "rank": 4, "dropout": 0.1},
        "train": {"steps": 5},
        "levers": {"gradient_checkpointing": 1.0},
    }
    plain = short_run(tiny_pipeline("flux"), tmp_path, **sections)
    # An observer in a hurry: so that steps are reported, which is a phase, while the profiler looks.
    observer = Recording(on_step=lambda _: None)
    looked = short_run(tiny_pipeline("flux"), tmp_path, observer=observer, profile=LOOK, **sections)
    assert losses_of(looked.run) == losses_of(plain.run)
    assert looked.record.measured.held_out_losses == plain.record.measured.held_out_losses
    (event,) = events_of(looked.run, "profiled")
    assert (event["first_step"], event["num_steps"]) == (1, 2)
    assert not list(plain.run.path.glob("profile/*"))
    (path,) = looked.run.profile.iterdir()
    assert path.name == event["path"]
    assert PLUGIN_NAME.match(path.name)
    names = {e["name"] for e in content_of(path)["traceEvents"]}
    assert {"ProfilerStep#2", "ProfilerStep#3", "phase forward", "phase data", "phase logging"} <= names
    assert {"block transformer_blocks.0", "block single_transformer_blocks.3"} <= names
    assert "ProfilerStep#4" not in names
    assert crossing_ranges(content_of(path)["traceEvents"]) == []
    assert str(tmp_path.parent) not in gzip.decompress(path.read_bytes()).decode()


def crossing_ranges(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Ranges of a track that neither follow each other nor lie in each other: viewers drop or misplace them."""
    found, tracks = [], defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    for ranges in tracks.values():
        around: list[tuple[float, str]] = []
        for begin_us, negative_us, name in sorted(ranges):
            end_us = begin_us - negative_us
            while around and around[-1][0] <= begin_us:
                around.pop()
            if around and end_us > around[-1][0] + 0.001:  # torch writes thousandths
                found.append((around[-1][1], name))
            around.append((end_us, name))
    return found


def test_crossing_ranges_are_seen() -> None:
    def one(name: str, begin_us: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "pid": 1, "tid": 1, "name": name, "ts": begin_us, "dur": dur}

    assert crossing_ranges([one("a", 0, 10), one("b", 2, 3), one("c", 5, 5), one("d", 10, 1)]) == []
    assert crossing_ranges([one("a", 0, 10), one("b", 5, 10)]) == [("a", "b")]


def test_a_look_after_the_last_step_is_warned_of_before_the_first(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    observer = Recording()
    looked = {"at_step": 3, "steps": 1}
    short_run(tiny_pipeline("ddpm"), tmp_path, observer=observer, profile=looked, train={"steps": 2})
    assert "Nothing will be profiled: profile.at_step is 3, and the run has 2 steps." in observer.of("warning")


@pytest.mark.parametrize("place", ["start", "stop", "export", "write"])
def test_a_profiler_fault_never_ends_the_run(
    place: str, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError(f"no {place} today")

    if place == "write":
        monkeypatch.setattr(instrument, "write_trace", fail)
    else:
        # After the real one, so that torch's profiler does not run on into other tests.
        name = "export_chrome_trace" if place == "export" else place
        real = getattr(torch.profiler.profile, name)

        def broken(self: torch.profiler.profile, *arguments: Any) -> None:
            real(self, *arguments)
            if place == "start":
                self.stop()
            fail()

        monkeypatch.setattr(torch.profiler.profile, name, broken)
    observer = Recording()
    trained = short_run(tiny_pipeline("flux"), tmp_path, observer=observer, train={"steps": 5}, profile=LOOK)
    assert trained.record.outcome.status == "finished"
    assert trained.record.outcome.steps_done == 5
    (warning,) = trained.record.warnings
    assert warning == f"Profiler failed and was put away: RuntimeError: no {place} today"
    assert "The training goes on." in observer.of("warning")[0]
    (event,) = events_of(trained.run, "instrument failed")
    assert "Traceback" in event["traceback"]
    monkeypatch.undo()
    plain = short_run(tiny_pipeline("flux"), tmp_path, train={"steps": 5})
    assert losses_of(trained.run) == losses_of(plain.run)


def test_a_run_that_ends_early_leaves_what_was_seen(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = short_run(tiny_pipeline("flux"), tmp_path, profile={"at_step": 3, "steps": 50})
    (event,) = events_of(trained.run, "profiled")
    assert (event["first_step"], event["num_steps"]) == (2, 1)


def test_profile_makes_a_run_without_checkpoints(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    run = profile(short_asked(tiny_pipeline("flux"), tmp_path, "full"), tmp_path / "runs", 2, Recording())
    record = run.read_record()
    assert record is not None
    assert record.outcome.steps_done == NUM_STEPS_BEFORE + 2
    assert not list(run.checkpoints.iterdir())
    assert read_run(run.path).kind == row_of(run.path)["kind"] == "profile", "no training"
    found = digest(newest_trace(run.path))
    assert found.num_steps == 2
    assert found.device == "cpu"
    assert len(found.longest) == 10
    assert sum(found.phases_s.values()) == pytest.approx(found.wall_s)
    assert sum(operator.share for operator in found.operators) < 1
    blocks = {module.name: module for module in found.modules}
    assert len(blocks) == 1 + 6
    assert all(module.forward_s > 0 for module in found.modules)
    assert all(module.backward_s > 0 for module in found.modules)
    assert found.memory is not None
    num_bytes = 4 * record.num_params if record.num_params else 0
    peak = found.memory.at_peak()
    assert peak["parameters"] == num_bytes
    # AdamW keeps two numbers for each weight, and a count for each tensor.
    assert 2 * num_bytes <= peak["optimizer state"] <= 2.01 * num_bytes
    # Each weight has its gradient where the backward pass ends.
    assert max(found.memory.held_bytes["gradients"]) == pytest.approx(num_bytes, rel=0.02)
    assert max(found.memory.held_bytes["activations"]) > 0


def test_names_of_ranges_are_those_that_the_digest_reads() -> None:
    assert (marks.PHASE, marks.BLOCK, marks.STEP) == (trace_events.PHASE, trace_events.BLOCK, trace_events.STEP)


def raw_trace(path: Path, num_steps: int, num_operators: int) -> Path:
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}]
    for step in range(num_steps):
        begin = 1000.0 * step
        common = {"ph": "X", "pid": 1, "tid": 1}
        events.append({**common, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 900})
        for number in range(num_operators):
            arguments = {"External id": number, "Record function id": 0, "Ev Idx": number}
            span = {"ts": begin + 9 * number, "dur": 0.1 + 5 * (number % 8)}
            events.append({**common, "cat": "cpu_op", "name": "aten::mul", **span, "args": arguments})
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


@pytest.mark.parametrize(("most_bytes", "num_steps"), [(90_000, 5), (45_000, 5), (17_000, 1)])
def test_a_trace_is_kept_small_and_says_so(most_bytes: int, num_steps: int, tmp_path: Path) -> None:
    raw = raw_trace(tmp_path / "raw.json", 5, 90)
    path = write_trace(raw, tmp_path / "profile", {"device": "cpu"}, most_bytes)
    text = gzip.decompress(path.read_bytes())
    assert len(text) <= most_bytes
    content = json.loads(text)
    assert content["schemaVersion"] == 1
    steps = [event["name"] for event in content["traceEvents"] if event.get("cat") == "user_annotation"]
    assert steps == [f"ProfilerStep#{number}" for number in range(num_steps)]
    left_out = content["foretune"]["left_out"]
    if most_bytes == 90_000:
        assert left_out is None
        assert len(content["traceEvents"]) == 1 + 5 * 91
        assert content["traceEvents"][2]["args"] == {"External id": 0}
    else:
        assert "operators under" in left_out
        assert ("of 5 steps" in left_out) == (num_steps < 5)
