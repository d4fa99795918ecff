"""What a checkpoint takes, on the disk and as the copy that an asynchronous save writes."""

from foretune.core.values.step_trace import on_host
from foretune.core.vocabulary import MemoryPart
from foretune.planner.around import Around, RunToPlan
from foretune.planner.expansion import bytes_by_category

_SAVED = (MemoryPart.TRAINED_WEIGHTS, MemoryPart.OPTIMIZER_STATE, MemoryPart.EMA)


def saved_bytes(around: Around) -> tuple[list[int], list[int]]:
    """Returns the bytes of each component of a checkpoint, on the device and on the host; of shards, those of one."""
    totals = bytes_by_category([*around.lasting, *around.lasting_on_host])
    return [totals.get(part, 0) for part in _SAVED], [totals.get(on_host(part), 0) for part in _SAVED]


def background_copy_bytes(run: RunToPlan, around: Around) -> int:
    """Returns what the copy of an asynchronous save takes of the memory that the training itself uses."""
    save = run.experiment.save
    if not (save.asynchronous and run.trains_on_host):
        return 0
    components, on_the_host = saved_bytes(around)
    return sum((*components, *on_the_host))
