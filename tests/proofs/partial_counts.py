"""What a long proof has counted so far, so that one that was stopped goes on where it was."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import foretune
from foretune.record.atomic import write_text

Counted = TypeVar("Counted")


class PartialCounts:
    """The results of the parts that are done. They are forgotten when the proof is through or the code changes."""

    def __init__(self, folder: Path, proof: str) -> None:
        self._path = folder / f"{proof}-{_hash_of_code()}.json"
        self._done = json.loads(self._path.read_text()) if self._path.is_file() else {}

    def part(self, name: str, count: Callable[[], Counted]) -> Counted:
        """The result of a part, which must be JSON, counted now unless it was before."""
        if name not in self._done:
            self._done[name] = count()
            write_text(self._path, json.dumps(self._done))
        result: Counted = self._done[name]
        return result

    def forget(self) -> None:
        """Called when all is counted and before it is judged: the next run measures again."""
        self._path.unlink(missing_ok=True)


def _hash_of_code() -> str:
    """Of the package and of the proofs: what another version counted says nothing about this one."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in (Path(foretune.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
