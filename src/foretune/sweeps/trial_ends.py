"""How a trial's run ended, as the outcome of its task; and what each trial begins without."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from foretune.core.memory_errors import lacking_memory_in
from foretune.core.values import RunRecord
from foretune.executors.outcome import OutcomeKind, TaskFailed, TaskInterrupted
from foretune.training.devices import choose_device


@contextmanager
def with_empty_compile_cache() -> Iterator[None]:
    """Code is compiled as on a machine that has none yet, whatever trials before this one left."""
    with tempfile.TemporaryDirectory(prefix="foretune-compiled-") as folder:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled", "TRITON_CACHE_DIR": f"{folder}/triton"}
        yield


def require_finished(record: RunRecord | None) -> None:
    """A run that did not finish is the trial's outcome."""
    assert record is not None, "a run that ends writes its record"
    outcome = record.outcome
    if outcome.status == "finished":
        return
    if outcome.status == "interrupted":
        raise TaskInterrupted(outcome.reason or "the training was interrupted")
    reason = outcome.reason or f"the training ended after {outcome.steps_done} steps"
    raise TaskFailed(kind_of(record), reason)


def kind_of(record: RunRecord) -> OutcomeKind:
    """Of a run that failed."""
    if record.outcome.status != "out of memory":
        return "crashed"
    return "out of host memory" if choose_device("auto").type == "cpu" else _memory_of(record.outcome.reason or "")


def _memory_of(reason: str) -> OutcomeKind:
    """With an accelerator, memory of the host can run out, too."""
    return "out of host memory" if lacking_memory_in(reason) == "host" else "out of device memory"
