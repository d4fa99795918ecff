"""How much an archive may be, and the error for one that is more."""

from dataclasses import dataclass
from pathlib import Path

from foretune.core.input_files import RefusedFile
from foretune.core.units import bytes_text, count_text

MIB, GIB = 2**20, 2**30
_BEFORE_RATIO_BYTES = 8 * MIB


@dataclass(frozen=True, kw_only=True)
class ImportLimits:
    """What is imported at most; an archive that has more is refused as a whole."""

    num_members: int = 20_000_000
    total_bytes: int = 2**40
    """Of all files that are written."""
    image_bytes: int = 512 * MIB
    """Of one image; what training reads at most."""
    caption_bytes: int = MIB
    metadata_bytes: int = GIB
    ratio: int = 100
    """Of unpacked to packed bytes. Images are compressed already: archives of them have 1 to 3."""

    def require_members(self, archive: Path, num_members: int) -> None:
        if num_members > self.num_members:
            raise RefusedFile(archive, f"has more than {count_text(self.num_members)} files. Import it in parts.")

    def require_total(self, archive: Path, total_bytes: int) -> None:
        if total_bytes > self.total_bytes:
            limit = bytes_text(self.total_bytes)
            raise RefusedFile(archive, f"unpacks to more than {limit}. Import it in parts, or raise --max-gib.")

    def require_ratio(self, archive: Path, unpacked_bytes: int, packed_bytes: int) -> None:
        """Refuses what is mostly emptiness; the first 8 MiB are free."""
        if unpacked_bytes > _BEFORE_RATIO_BYTES + self.ratio * packed_bytes:
            raise RefusedFile(
                archive,
                f"unpacks to more than {self.ratio} times its size, as only an archive does that is made to fill a "
                "disk, so it is not imported.",
            )


class DamagedArchive(RefusedFile):
    """An archive that is cut short, or not what it says."""

    def __init__(self, archive: Path, why: str) -> None:
        super().__init__(archive, f"is damaged ({why}), so nothing was imported. Download it again.")
