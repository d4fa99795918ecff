"""One file of an archive, as its format describes it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["file", "folder", "link", "device", "encrypted", "sparse"]


@dataclass(frozen=True, slots=True)
class Member:
    """A name that the archive gives, not one to write to."""

    name: str
    num_bytes: int
    """As the archive says it."""
    kind: Kind


class ArchiveReader(Protocol):
    """Members in the order of the archive. The content of each is read before the next one is requested, or not."""

    def members(self) -> Iterator[Member]: ...

    def blocks(self) -> Iterator[bytes]:
        """The content of the latest member, in blocks; raises `DamagedArchive` where it is not as long as it says."""

    def done_bytes(self) -> int:
        """How much of the archive's own bytes was read."""

    def close(self) -> None: ...
