"""`doctor`: what works on this machine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from foretune.core.extras import require
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.checkup.finding import CheckResult


@dataclass(frozen=True)
class Examined:
    """The operations that a training needs, run on each device present."""

    accelerators: str
    """Which GPUs torch sees, in a sentence."""
    findings: "tuple[CheckResult, ...]"
    environment: dict[str, Any]

    @property
    def failed(self) -> "tuple[CheckResult, ...]":
        """What a training needs and does not work."""
        return tuple(finding for finding in self.findings if finding.needed and not finding.works)

    @property
    def is_ready(self) -> bool:
        return not self.failed

    def to_mapping(self) -> dict[str, Any]:
        findings = [asdict(finding) for finding in self.findings]
        return {"ready": self.is_ready, "environment": self.environment, "findings": findings}


def doctor(only: Sequence[str] = (), *, observer: Observer | None = None) -> Examined:
    """Runs the operations a training needs on each device present, and says what works.

    Args:
        only: groups to examine, such as `("training", "attention")`; all if left out.
        observer: receives progress.
    """
    from foretune.checkup.groups import groups_named

    groups = groups_named(only)
    require("train", "The doctor")
    observer = observer or Observer()
    from foretune.api.process_state import torch_kept
    from foretune.checkup.examining import examine
    from foretune.record.environment import environment_fingerprint
    from foretune.training.devices import accelerators_text

    accelerators = accelerators_text()
    observer.message(accelerators)
    with torch_kept():
        findings = tuple(examine(lambda what: observer.preparing(f"examining {what}", 0, 0), groups))
    return Examined(accelerators, findings, environment_fingerprint())
