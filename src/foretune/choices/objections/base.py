"""What an objection is."""

from dataclasses import dataclass
from typing import Literal

DeviceType = Literal["cpu", "cuda", "rocm", "mps"]
"""Where a step runs. cuda and rocm are one to torch, but not to every library."""


@dataclass(frozen=True)
class Objection:
    """Something that speaks against an experiment."""

    severity: Literal["refused", "warning"]
    text: str


def refused(text: str) -> Objection:
    return Objection("refused", text)


def warning(text: str) -> Objection:
    return Objection("warning", text)
