"""What of a machine must not be published: folders of its user, its name, tokens."""

import json
import platform
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from foretune.core.errors import UserError
from foretune.record.redaction import redacted_text

_SHORTEST = 4
_HEADER_BYTES = 8
_MOST_HEADER_BYTES = 10**8
_TEXT_SUFFIXES = (".json", ".md", ".yaml", ".txt", ".jinja")
# Of a tokenizer: words, which may be anybody's name, and which the base's publisher has published.
_WORD_LISTS = ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json")
# Fields in which libraries write where a model was loaded from.
_ORIGINS = ("_name_or_path", "base_model_name_or_path")


class Personal:
    """The folders and the name of this machine, as they could stand in a text."""

    def __init__(self, folders: Iterable[Path]) -> None:
        known = [Path.home(), Path.cwd(), *folders]
        paths = {str(form) for folder in known for form in (folder.absolute(), folder.resolve())}
        # "/" and "/x" are in every text, and tell nothing. JSON writes some characters of a path otherwise.
        long = [path for path in paths if len(path) > _SHORTEST]
        forms = {form for path in long for form in (path, json.dumps(path)[1:-1])}
        found = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        # Not in the middle of a longer path or of an address: "./data" and "example.org/datasets" are no "/data".
        self._paths = re.compile(rf"(?<![\w.])(?:{found})(?![\w-])") if found else None
        host = platform.node()
        # A name of letters alone, such as "train", may be any word.
        tells = len(host) >= _SHORTEST and not host.isalpha()
        self._host = re.compile(rf"(?<![\w-]){re.escape(host)}(?![\w-])") if tells else None

    def found_in(self, text: str) -> str | None:
        """What of this machine a text has in it; None if nothing."""
        if self._paths is not None and self._paths.search(text):
            return "a folder of this machine"
        if self._host is not None and self._host.search(text):
            return "the name of this machine"
        return None if redacted_text(text) == text else "what looks like a token or password"


def clean_origins(folder: Path, personal: Personal, origin: str) -> None:
    """Replaces folders that libraries noted as a model's origin in the JSON files of an export."""
    for path in sorted(folder.rglob("*.json")):
        if path.name in _WORD_LISTS:
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            continue
        noted = [key for key in _ORIGINS if personal.found_in(str(content.get(key) or "")) is not None]
        if noted:
            cleaned = {**content, **dict.fromkeys(noted, origin)}
            path.write_text(json.dumps(cleaned, indent=2) + "\n", encoding="utf-8")


def refuse_personal(folder: Path, personal: Personal) -> None:
    """Raises if a file that would be published names a folder or the name of this machine, or holds a secret."""
    for path, text in _texts(folder):
        found = personal.found_in(text)
        if found is not None:
            raise UserError(
                f"{path.relative_to(folder)} would publish {found}, so nothing was uploaded. Look at it in {folder}; a "
                "prompt or a name in the experiment may hold it."
            )


def _texts(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.suffix in _TEXT_SUFFIXES and path.name not in _WORD_LISTS:
            yield path, path.read_text(encoding="utf-8", errors="replace")
        elif path.suffix == ".safetensors":
            yield path, _header(path)


def _header(path: Path) -> str:
    """The names and the metadata of a file of tensors."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(_HEADER_BYTES))
        return stream.read(min(length, _MOST_HEADER_BYTES)).decode("utf-8", errors="replace")
