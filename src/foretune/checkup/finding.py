"""What is found out, and how a check is written down."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from foretune.checkup.groups import Group
from foretune.core.errors import MissingExtra


@dataclass(frozen=True)
class CheckResult:
    """One operation on one device."""

    device: str
    group: Group
    operation: str
    works: bool
    needed: bool
    """Whether every training needs it; others are named so that one knows what not to ask for."""
    seconds: float
    detail: str
    remedy: str | None = None
    """What to type."""


@dataclass(frozen=True)
class Check:
    """An operation that answers with what it found out, or raises."""

    group: Group
    operation: str
    run: Callable[[torch.device], str]
    needed: bool = False
    device_types: tuple[str, ...] | None = None
    """The only devices that have it; None: all."""


def examined(check: Check, device: torch.device, shown: str | None = None) -> CheckResult:
    """Executes a check. Whatever it raises is the finding."""
    remedy = None
    started_s = time.perf_counter()
    try:
        detail, works = check.run(device), True
    except MissingExtra as error:
        works, detail, remedy = False, "not installed", f"pip install 'foretune[{error.extra}]'"
    except Exception as error:  # noqa: BLE001 - whatever a device or a library can raise is the finding
        first = str(error).strip().splitlines()
        works, detail = False, f"{type(error).__name__}: {first[0] if first else 'no reason given'}"
    seconds = time.perf_counter() - started_s
    return CheckResult(shown or str(device), check.group, check.operation, works, check.needed, seconds, detail, remedy)
