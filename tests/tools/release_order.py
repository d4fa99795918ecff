"""A trace without the order of releases that follow each other, with nothing allocated between them.

Python decides that order, and it may differ between two processes; what is in memory at any allocation does not.
"""

from collections import defaultdict
from collections.abc import Iterator

from foretune.core.values.step_trace import BlockKind, Moment, StepTrace, Storage

Segment = tuple[int, int, str, int]
"""A phase of a block, or of none: phase, kind, where the block is counted from, its number from there."""


def without_release_order(trace: StepTrace) -> StepTrace:
    """Releases of one run get the position of its first one."""
    made: dict[Segment, set[int]] = defaultdict(set)
    released: dict[Segment, set[int]] = defaultdict(set)
    for kind, origin, number, storages in _lists(trace):
        for storage in storages:
            made[_segment(storage.made, kind, origin, number)].add(storage.made.position)
            released[_segment(storage.released, kind, origin, number)].add(storage.released.position)
    first = {
        segment: {position: _first_of_run(position, positions - made[segment]) for position in positions}
        for segment, positions in released.items()
    }

    def changed(storages: tuple[Storage, ...], kind: int, origin: str, number: int) -> tuple[Storage, ...]:
        return tuple(
            storage._replace(
                released=storage.released._replace(
                    position=first[_segment(storage.released, kind, origin, number)][storage.released.position]
                )
            )
            for storage in storages
        )

    def changed_kind(index: int, kind: BlockKind) -> BlockKind:
        return kind.model_copy(
            update={
                "first": tuple(changed(of, index, "start", number) for number, of in enumerate(kind.first)),
                "middle": changed(kind.middle, index, "middle", 0),
                "last": tuple(
                    changed(of, index, "end", len(kind.last) - 1 - number) for number, of in enumerate(kind.last)
                ),
            }
        )

    return trace.model_copy(
        update={
            "outside": changed(trace.outside, 0, "none", 0),
            "kinds": tuple(changed_kind(index, kind) for index, kind in enumerate(trace.kinds)),
        }
    )


def _lists(trace: StepTrace) -> Iterator[tuple[int, str, int, tuple[Storage, ...]]]:
    yield 0, "none", 0, trace.outside
    for index, kind in enumerate(trace.kinds):
        for number, storages in enumerate(kind.first):
            yield index, "start", number, storages
        yield index, "middle", 0, kind.middle
        for number, storages in enumerate(kind.last):
            yield index, "end", len(kind.last) - 1 - number, storages


def _segment(moment: Moment, kind: int, origin: str, number: int) -> Segment:
    """Where a moment is, for a storage of the block that `kind`, `origin` and `number` name."""
    if moment.block == "own":
        return moment.phase, kind, origin, number - moment.offset if origin == "end" else number + moment.offset
    if moment.block == "none":
        return moment.phase, 0, "none", 0
    return moment.phase, moment.kind, moment.block.removeprefix("from "), moment.offset


def _first_of_run(position: int, releases: set[int]) -> int:
    while position - 1 in releases:
        position -= 1
    return position
