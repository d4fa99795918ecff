"""A packed trace is small, and what comes out is what went in."""

import json
import lzma
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretune.core.values import StepTrace
from foretune.core.values.base import WrongFormat
from foretune.core.values.packed_trace import pack, unpack
from foretune.core.values.step_trace import NEVER, BlockKind, Growth, Moment, Storage
from foretune.trace import shipped
from tests.core.formats import frozen_file

MOST_BYTES = 20_000

small = st.integers(-3, 1000)
moments = st.builds(
    Moment,
    phase=st.integers(NEVER, 4),
    block=st.sampled_from(["none", "own", "from start", "from end"]),
    kind=st.integers(-1, 3),
    offset=small,
    position=small,
    # Nothing that was recorded is shifted.
    shift=st.just(0),
)
storages = st.lists(
    st.builds(Storage, made=moments, released=moments, growth=st.integers(0, 50), category=st.integers(0, 7)),
    max_size=6,
).map(tuple)
powers = st.tuples(*(st.integers(0, 3),) * 4)
terms = st.lists(st.tuples(st.floats(-1e15, 1e15), powers), max_size=3).map(tuple)
kinds = st.builds(
    BlockKind,
    name=st.text(max_size=5),
    count=st.integers(1, 60),
    first=st.lists(storages, max_size=2).map(tuple),
    middle=storages,
    last=st.lists(storages, max_size=2).map(tuple),
)


def frozen_trace() -> StepTrace:
    return StepTrace.from_json(frozen_file("StepTrace", 1).read_text(encoding="utf-8"))


def test_a_trace_made_by_hand_comes_back() -> None:
    trace = frozen_trace()
    assert trace.kinds[0].middle, "the file holds storages of every sort"
    back = unpack(pack(trace))
    assert back == trace
    assert back.to_json() == trace.to_json()


def test_what_was_composed_is_not_packed() -> None:
    """Its shifts would be lost."""
    trace = frozen_trace()
    shifted = trace.outside[0]._replace(made=trace.outside[0].made._replace(shift=1))
    with pytest.raises(AssertionError, match="not shipped"):
        pack(trace.model_copy(update={"outside": (shifted,)}))


@given(outside=storages, of_blocks=st.lists(kinds, max_size=2), growths=st.lists(terms, max_size=3))
@settings(max_examples=60)
def test_any_trace_comes_back(
    outside: tuple[Storage, ...], of_blocks: list[BlockKind], growths: list[tuple[tuple[float, tuple[int, ...]], ...]]
) -> None:
    trace = frozen_trace().model_copy(
        update={
            "outside": outside,
            "kinds": tuple(of_blocks),
            "growths": tuple(Growth.model_validate({"terms": some}) for some in growths),
        }
    )
    back = unpack(pack(trace))
    assert back == trace
    # What was read without checks would pass them.
    assert StepTrace.from_json(back.to_json()) == trace


@pytest.mark.parametrize("slug", ["flux.1-dev.lora.bf16.kept", "flux.1-dev.lora.bf16.checkpointed"])
def test_a_shipped_trace_comes_back_and_is_small(slug: str) -> None:
    packed = (shipped.folder() / f"{slug}{shipped.SUFFIX}").read_bytes()
    trace = unpack(packed)
    assert sum(kind.count for kind in trace.kinds) == 57
    assert unpack(pack(trace)) == trace
    assert StepTrace.from_json(trace.to_json()) == trace
    assert len(packed) < MOST_BYTES < len(trace.to_json()) / 10


def test_every_shipped_trace_is_small() -> None:
    folder = Path(str(shipped.folder()))
    too_large = [path.name for path in folder.glob(f"*{shipped.SUFFIX}") if path.stat().st_size >= MOST_BYTES]
    assert too_large == []


def with_body(**changes: object) -> bytes:
    body = {**json.loads(lzma.decompress(pack(frozen_trace()))), **changes}
    return lzma.compress(json.dumps({key: value for key, value in body.items() if value is not None}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not packed at all",
        pack(frozen_trace())[:-20],
        pack(frozen_trace())[:100] + bytes(20) + pack(frozen_trace())[120:],
        lzma.compress(b"not JSON"),
        lzma.compress(b"[" * 100_000),
        lzma.compress(b"\xff\xfe\xff"),
        lzma.compress(b"[1, 2]"),
        with_body(format_version=99),
        with_body(format_version=None),
        with_body(growths=None),
        with_body(outside=[[0], [0, 1]]),
        with_body(outside=[["x"] for _ in range(12)]),
        with_body(kinds=[{"name": "lonely"}]),
        with_body(numerics="abacus"),
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WrongFormat, match="StepTrace"):
        unpack(data)


def test_what_unpacks_to_far_more_than_a_trace_is_refused_before_it_does() -> None:
    bomb = lzma.compress(b" " * 2**28)
    tracemalloc.start()
    try:
        with pytest.raises(WrongFormat, match="more than 64 MiB"):
            unpack(bomb)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 160 * 2**20, "pieces and the whole of them"
