"""How a task ended. A failure is a result, too."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

OutcomeKind = Literal[
    "done",
    "out of device memory",
    "out of host memory",
    "timed out",
    "killed",
    "crashed",
    "refused",
    "predicted not to fit",
    "never started",
]
OUTCOME_KINDS: tuple[OutcomeKind, ...] = get_args(OutcomeKind)


@dataclass(frozen=True, kw_only=True)
class TaskOutcome:
    """What came of a task."""

    kind: OutcomeKind
    reason: str | None = None
    """One sentence; None where it is done."""
    log_lines: tuple[str, ...] = ()
    """The last lines of its log, without secrets."""
    exit_code: int | None = None
    """Of its process, where it ended by itself and without an answer."""
    signal: str | None = None
    """The signal that ended its process, such as SIGKILL."""
    num_attempts: int = 0
    seconds: float = 0.0
    """From the start of its last attempt to its end, on the clock."""
    host: str | None = None
    """Where the last attempt ran."""

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any]) -> "TaskOutcome":
        return cls(**{**fields, "log_lines": tuple(fields["log_lines"])})


class TaskFailed(Exception):
    """Raised by `perform` where it knows what the outcome is."""

    def __init__(self, kind: OutcomeKind, reason: str, *, is_of_another: bool = False) -> None:
        """`is_of_another`: another process of the task failed, which reports why, or its node is lost."""
        self.kind: OutcomeKind = kind
        self.reason = reason
        self.is_of_another = is_of_another
        super().__init__(f"{kind}: {reason}")


class TaskInterrupted(Exception):
    """Raised by `perform` where it was asked to stop and can be continued by performing the same request again."""
