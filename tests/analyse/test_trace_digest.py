"""The digest of traces whose every microsecond is known."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.trace_digest import OUTSIDE, digest, newest_trace
from foretune.core.errors import UserError

MAIN, AUTOGRAD = 1, 2


def span(category: str, name: str, begin: float, end: float, thread: int = MAIN, **arguments: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": begin, "dur": end - begin}
    return {**event, "args": arguments}


def annotation(name: str, begin: float, end: float) -> dict[str, Any]:
    return span("user_annotation", name, begin, end)


def memory(time_us: float, num_bytes: int, address: int, device: int = 0) -> dict[str, Any]:
    arguments = {"Bytes": num_bytes, "Addr": address, "Device Type": device}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": time_us, "args": arguments}


PHASES = [
    annotation("ProfilerStep#1", 0, 1000),
    annotation("phase data", 0, 100),
    annotation("phase forward", 100, 400),
    annotation("phase backward", 400, 800),
    annotation("phase optimizer", 800, 900),
]


def written(path: Path, events: list[dict[str, Any]], **notes: Any) -> Path:
    path.write_text(json.dumps({"traceEvents": events, "foretune": notes}))
    return path


@pytest.fixture
def on_cpu(tmp_path: Path) -> Path:
    events = [
        *PHASES,
        annotation("block blocks.0", 100, 300),
        span("cpu_op", "aten::linear", 100, 300, **{"Sequence number": 7}),
        span("cpu_op", "aten::addmm", 120, 280, **{"Sequence number": 7}),
        span("cpu_op", "aten::copy_", 310, 360),
        # The backward pass on the same thread, known by the number of its forward operator.
        span("cpu_op", "AddmmBackward0", 400, 700, **{"Sequence number": 7, "Fwd thread id": 1}),
        span("cpu_op", "aten::mm", 450, 700),
        span("cpu_op", "aten::_foreach_add_", 800, 900),
        memory(150, 1000, 1),  # an activation
        memory(200, 50, 2),  # comes and goes in the forward pass
        memory(210, -50, 2),
        memory(500, 400, 3),  # a gradient
        memory(690, -1000, 1),
        memory(850, 30, 4),  # what the optimizer keeps
        memory(890, -400, 3),
        memory(895, -70, 99),  # was there before
    ]
    return written(tmp_path / "a.pt.trace.json", events, device="cpu", held_bytes={"parameters": 5000})


def test_operators_by_their_own_time(on_cpu: Path) -> None:
    found = digest(on_cpu)
    times_us = {operator.name: round(operator.seconds * 1e6) for operator in found.operators}
    assert times_us == {
        "aten::mm": 250,
        "aten::addmm": 160,
        "aten::_foreach_add_": 100,
        "AddmmBackward0": 50,
        "aten::copy_": 50,
        "aten::linear": 40,
    }
    assert found.longest[0].share == pytest.approx(0.25)
    assert found.longest[0].num_calls == 1


def test_phases_and_shares(on_cpu: Path) -> None:
    found = digest(on_cpu)
    assert found.wall_s == pytest.approx(1e-3)
    in_us = {name: round(seconds * 1e6) for name, seconds in found.phases_s.items()}
    assert in_us == {"data": 100, "forward": 300, "backward": 400, "optimizer": 100, "other": 100}
    assert found.shares.input == pytest.approx(0.1)
    # 50 us of the forward and 100 us of the backward pass no operator runs.
    assert found.shares.launch == pytest.approx(0.15)
    assert found.shares.idle == pytest.approx(0.1)
    assert found.shares.copy == pytest.approx(0.05)
    assert found.shares.compute == pytest.approx(0.6)


def test_blocks_forward_and_backward(on_cpu: Path) -> None:
    blocks = {module.name: module for module in digest(on_cpu).modules}
    assert set(blocks) == {"blocks.0", OUTSIDE}
    assert blocks["blocks.0"].forward_s == pytest.approx(200e-6)
    assert blocks["blocks.0"].backward_s == pytest.approx(300e-6)
    assert blocks[OUTSIDE].forward_s == pytest.approx(50e-6)


def test_memory_by_what_it_is_for(on_cpu: Path) -> None:
    timeline = digest(on_cpu).memory
    assert timeline is not None
    assert timeline.at_peak() == {
        "parameters": 5000,
        "optimizer state": 0,
        "gradients": 400,
        "activations": 1000,
        "inputs": 0,
        "temporaries": 0,
    }
    assert max(timeline.totals_bytes) == 6400
    assert max(timeline.held_bytes["temporaries"]) == 50
    assert timeline.held_bytes["optimizer state"][-1] == 30
    assert timeline.held_bytes["gradients"][-1] == 0


def test_on_a_device_its_work_counts(tmp_path: Path) -> None:
    events = [
        *PHASES,
        annotation("block blocks.0", 100, 300),
        span("cpu_op", "aten::mm", 100, 110, **{"External id": 5, "Sequence number": 3}),
        span(
            "cpu_op", "MmBackward0", 400, 410, AUTOGRAD, **{"External id": 6, "Sequence number": 3, "Fwd thread id": 1}
        ),
        span("kernel", "gemm", 150, 350, 7, **{"External id": 5}),
        span("kernel", "gemm_backward", 450, 750, 7, **{"External id": 6}),
        span("gpu_memcpy", "Memcpy HtoD", 50, 90, 7),
        memory(150, 64, 1, device=1),
        memory(150, 1_000_000, 2, device=0),
    ]
    found = digest(written(tmp_path / "b.pt.trace.json", events, device="cuda"))
    assert [(operator.name, round(operator.seconds * 1e6)) for operator in found.operators] == [
        ("MmBackward0", 300),
        ("aten::mm", 200),
    ]
    (block,) = found.modules
    assert (block.name, round(block.forward_s * 1e6), round(block.backward_s * 1e6)) == ("blocks.0", 200, 300)
    # Of the time for data the device copies 40 us; the host leaves it without work in 300 us of computing phases.
    assert found.shares.input == pytest.approx(0.06)
    assert found.shares.copy == pytest.approx(0.04)
    assert found.shares.launch == pytest.approx(0.3)
    assert found.shares.idle == pytest.approx(0.1)
    assert found.memory is not None
    assert max(found.memory.totals_bytes) == 64


def test_copies_behind_computing_cost_nothing(tmp_path: Path) -> None:
    events = [
        *PHASES,
        span("kernel", "gemm", 100, 700, 7),
        span("gpu_memcpy", "Memcpy DtoH", 200, 600, 8),  # offloaded while it computes
        span("gpu_memcpy", "Memcpy HtoD", 650, 750, 8),
        span("gpu_memcpy", "Memcpy HtoD", 700, 760, 9),  # on another stream, at the same time
    ]
    shares = digest(written(tmp_path / "c.pt.trace.json", events, device="cuda")).shares
    assert shares.copy == pytest.approx(0.06)
    assert shares.compute == pytest.approx(0.6)


def test_copies_that_make_a_batch_are_input_alone(tmp_path: Path) -> None:
    events = [*PHASES, span("cpu_op", "aten::copy_", 0, 100), span("cpu_op", "aten::mm", 100, 900)]
    shares = digest(written(tmp_path / "d.pt.trace.json", events, device="cpu")).shares
    assert (shares.input, shares.copy) == pytest.approx((0.1, 0.0))
    assert shares.compute == pytest.approx(0.8)


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pt.trace.json"
    broken.write_text("{")
    with pytest.raises(UserError, match="not a readable trace"):
        digest(broken)
    with pytest.raises(UserError, match="has no steps in it"):
        digest(written(tmp_path / "empty.pt.trace.json", []))
    with pytest.raises(UserError, match="foretune profile experiment"):
        newest_trace(tmp_path)


def packed(path: Path, text: bytes, times: int = 1) -> Path:
    """A compressed trace of a text that is repeated so many times."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(times):
            file.write(text)
    return path


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_does(tmp_path: Path) -> None:
    bomb = packed(tmp_path / "bomb.pt.trace.json.gz", b'{"traceEvents": [' + b" " * 2**20, times=2048)
    assert bomb.stat().st_size < 4_000_000, "a few MB"
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"bomb\.pt\.trace\.json\.gz unpacks to more than 95\.37 MiB"):
            digest(bomb)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 150_000_000


def test_a_small_file_of_very_many_values_is_refused_before_they_are_made(tmp_path: Path) -> None:
    bomb = packed(tmp_path / "values.pt.trace.json.gz", b"[]," * 2**20, times=24)
    with pytest.raises(UserError, match=r"values\.pt\.trace\.json\.gz has more than 12,000,000 values"):
        digest(bomb)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"traceEvents": [1]}',
        b'{"traceEvents": {"a": 1}}',
        b'{"traceEvents": [], "foretune": 3}',
        b'{"traceEvents": [{"ph": "X", "cat": "cpu_op"}]}',
        b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "tid": [], "ts": 0, "dur": 1, "name": "x"}]}',
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "x", "dur": 1, "name": "x"}]}',
    ],
)
def test_what_is_in_a_trace_that_nobody_profiled_is_refused_by_name(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(UserError, match=r"strange\.pt\.trace\.json\.gz is not a readable trace"):
        digest(packed(tmp_path / "strange.pt.trace.json.gz", text))


def test_damage_inside_of_a_compressed_trace_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "torn.pt.trace.json.gz"
    head, no_kind_of_block = b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\xff" * 40
    path.write_bytes(head + no_kind_of_block)
    with pytest.raises(UserError, match=r"torn\.pt\.trace\.json\.gz is not a readable trace"):
        digest(path)


def test_events_that_cannot_be_added_up_are_refused_by_name(tmp_path: Path) -> None:
    strange = {"ph": "i", "name": "[memory]", "ts": 5, "args": {"Device Type": 0, "Bytes": "many", "Addr": 1}}
    with pytest.raises(UserError, match=r"e\.pt\.trace\.json is not a readable trace"):
        digest(written(tmp_path / "e.pt.trace.json", [*PHASES, strange], device="cpu"))


def test_a_trace_that_is_a_link_out_of_its_run_is_not_read(tmp_path: Path) -> None:
    outside = written(tmp_path / "outside.pt.trace.json", [*PHASES, span("cpu_op", "aten::mm", 100, 900)])
    (tmp_path / "run" / "profile").mkdir(parents=True)
    link = tmp_path / "run" / "profile" / "a.pt.trace.json"
    link.symlink_to(outside)
    with pytest.raises(UserError, match=r"leads to .*outside\.pt\.trace\.json, outside of"):
        digest(newest_trace(tmp_path / "run"), within=tmp_path / "run")
    assert digest(link).num_steps
