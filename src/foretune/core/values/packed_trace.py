"""A StepTrace as few bytes: storages as columns of small numbers, squeezed. Exact: what goes in comes out."""

import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, repeat
from typing import Any, Literal

from foretune.core.input_files import parse_json
from foretune.core.values.base import WrongFormat
from foretune.core.values.step_trace import BlockKind, Growth, Moment, StepTrace, Storage, Work

_BLOCKS: tuple[Literal["none", "own", "from start", "from end"], ...] = ("none", "own", "from start", "from end")
_MOMENT_COLUMNS = 5
# Several times as fast as calling the classes; a trace has tens of thousands of storages.
_new_moment = partial(tuple.__new__, Moment)
_new_storage = partial(tuple.__new__, Storage)
_WIDTH = 2 * _MOMENT_COLUMNS + 2
_LAYOUT_VERSION = 2
"""Of the columns; that of `StepTrace` is of its JSON. Version 1 has the work as JSON, without shapes."""
_MOST_TEXT_BYTES = 64 * 2**20
"""Forty times the largest trace that ships."""
_MOST_UNPACKING_BYTES = 64 * 2**20
"""Memory that unpacking may take; what `pack` writes needs 9 MiB."""


def pack(trace: StepTrace) -> bytes:
    """The trace in a compressed form."""
    body = trace.model_dump(mode="json", exclude={"outside", "kinds", "growths", "work"})
    body["growths"] = _plain_growths(trace.growths)
    body["work"] = _packed_work(trace.work)
    body["outside"] = _columns(trace.outside)
    body["kinds"] = [
        {
            "name": kind.name,
            "count": kind.count,
            "first": [_columns(block) for block in kind.first],
            "middle": _columns(kind.middle),
            "last": [_columns(block) for block in kind.last],
        }
        for kind in trace.kinds
    ]
    text = json.dumps({"format_version": _LAYOUT_VERSION, **body}, separators=(",", ":"))
    return lzma.compress(text.encode(), preset=6)


def unpack(data: bytes) -> StepTrace:
    """The trace again."""
    try:
        body = parse_json(_unpacked(data))
        version = body.pop("format_version")
        if version == _LAYOUT_VERSION:
            return _trace(body, _unpacked_work(body.pop("work")))
        if version == 1:
            return _trace(body)
    except (lzma.LZMAError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise WrongFormat(f"This packed StepTrace is damaged: {error}") from error
    raise WrongFormat(f"This packed StepTrace has format version {version}, not {_LAYOUT_VERSION}.")


def _unpacked(data: bytes) -> bytes:
    """The text of a packed trace, refused as soon as it is more than any trace has."""
    unpacking = lzma.LZMADecompressor(memlimit=_MOST_UNPACKING_BYTES)
    text = unpacking.decompress(data, max_length=_MOST_TEXT_BYTES)
    if not unpacking.eof:
        raise ValueError(f"it is cut short, or has more than {_MOST_TEXT_BYTES // 2**20} MiB")
    return text


def _trace(body: dict[str, Any], work: tuple[Work, ...] | None = None) -> StepTrace:
    growths = _read_growths(body.pop("growths"))
    outside = _storages(body.pop("outside"))
    kinds = tuple(
        BlockKind.model_construct(
            name=kind["name"],
            count=kind["count"],
            first=tuple(map(_storages, kind["first"])),
            middle=_storages(kind["middle"]),
            last=tuple(map(_storages, kind["last"])),
        )
        for kind in body.pop("kinds")
    )
    # The storages are numbers of our own making; checking each again would take longer than reading them.
    head = StepTrace.model_validate({**body, "growths": (), "outside": (), "kinds": ()})
    update: dict[str, Any] = {"growths": growths, "outside": outside, "kinds": kinds}
    return head.model_copy(update=update if work is None else {**update, "work": work})


def _plain_growths(growths: Iterable[Growth]) -> list[list[list[float]]]:
    return [[[coefficient, *powers] for coefficient, powers in growth.terms] for growth in growths]


def _read_growths(plain: Iterable[Any]) -> tuple[Growth, ...]:
    return tuple(Growth.of_all_fields(terms=tuple((term[0], tuple(term[1:])) for term in terms)) for terms in plain)


def _packed_work(rows: Sequence[Work]) -> dict[str, Any]:
    """Rows of indices: operators share their words and most of their growths."""
    words: dict[str, int] = {}
    growths: dict[Growth, int] = {}
    packed = [
        [
            words.setdefault(row.phase, len(words)),
            row.kind,
            words.setdefault(row.operator, len(words)),
            words.setdefault(row.dtype, len(words)),
            row.count,
            row.is_frozen + 2 * row.is_masked + 4 * row.is_recomputed,
            *(growths.setdefault(growth, len(growths)) for growth in (row.flops, row.bytes_moved, *row.shape)),
        ]
        for row in rows
    ]
    return {"words": list(words), "growths": _plain_growths(growths), "rows": packed}


def _unpacked_work(packed: dict[str, Any]) -> tuple[Work, ...]:
    words, growths = packed["words"], _read_growths(packed["growths"])
    return tuple(
        Work.of_all_fields(
            phase=words[phase],
            kind=kind,
            operator=words[operator],
            dtype=words[dtype],
            count=count,
            flops=growths[flops],
            bytes_moved=growths[moved],
            shape=tuple(growths[number] for number in shape),
            is_frozen=bool(flags & 1),
            is_masked=bool(flags & 2),
            is_recomputed=bool(flags & 4),
        )
        for phase, kind, operator, dtype, count, flags, flops, moved, *shape in packed["rows"]
    )


def _columns(storages: Iterable[Storage]) -> list[list[int]]:
    """One list a column, each number as its difference from the one before: neighbours are alike."""
    rows = [[*_moment(s.made), *_moment(s.released), s.growth, s.category] for s in storages]
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(_WIDTH)]
    return [[value - before for value, before in zip(column, [0, *column], strict=False)] for column in columns]


def _moment(moment: Moment) -> tuple[int, int, int, int, int]:
    assert not moment.shift, "what is put together is not shipped"
    return moment.phase, _BLOCKS.index(moment.block), moment.kind, moment.offset, moment.position


def _storages(columns: Sequence[Sequence[int]]) -> tuple[Storage, ...]:
    *moments, growths, categories = (list(accumulate(column)) for column in columns)
    made, released = _moments(moments[:_MOMENT_COLUMNS]), _moments(moments[_MOMENT_COLUMNS:])
    return tuple(map(_new_storage, zip(made, released, growths, categories, strict=True)))


def _moments(columns: Sequence[Sequence[int]]) -> Iterator[Moment]:
    phases, blocks, kinds, offsets, positions = columns
    names = map(_BLOCKS.__getitem__, blocks)
    return map(_new_moment, zip(phases, names, kinds, offsets, positions, repeat(0, len(phases)), strict=True))
