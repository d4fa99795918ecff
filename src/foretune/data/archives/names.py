"""Names that an archive gives to its members, and whether a file may be written under one."""

import re
import unicodedata

from foretune.core.input_files import shown

_MOST_PART_BYTES = 200
_MOST_NAME_BYTES = 1000
_MOST_FOLDERS = 16
_DRIVE = re.compile(r"^[A-Za-z]:")
# Not in names on Windows, where a colon also leads to another stream of a file.
_FORBIDDEN = re.compile(r'[<>:"|?*\\]')
_DEVICES = re.compile(r"^(con|prn|aux|nul|com\d|lpt\d|conin\$|conout\$)(\.|$)", re.IGNORECASE)
_HIDDEN_FOLDERS = ("__MACOSX",)


class NamesTaken:
    """The names that were given so far, as file systems compare them that ignore case or the form of letters."""

    def __init__(self) -> None:
        self._spelled: dict[str, str] = {}
        self._files: set[str] = set()

    def why_not(self, name: str) -> str | None:
        """Why a file of this name would land on or in another one; None, and the name is taken."""
        folders = [name[:place] for place, letter in enumerate(name) if letter == "/"]
        if any(_compared(folder) in self._files for folder in folders):
            return "lies in what is a file"
        key = _compared(name)
        if key in self._files:
            return "has the name of another file, or differs only in case or accents"
        spelled = [(folder, self._spelled.get(_compared(folder), folder)) for folder in (*folders, name)]
        if any(own != other for own, other in spelled):
            return "lies in a folder whose name differs only in case or accents from another"
        if key in self._spelled:
            return "has the name of a folder"
        self._files.add(key)
        self._spelled |= {_compared(folder): folder for folder in folders}
        return None


def why_refused(name: str) -> str | None:
    """Why no file is written under a name; None where it is harmless on every file system."""
    if not name or name.startswith(("/", "\\")) or _DRIVE.match(name):
        return "has an absolute path or no name"
    parts = re.split(r"[/\\]", name)
    if ".." in parts:
        return "has a path that leads out of the folder"
    if _FORBIDDEN.search(name) or (not (name.isascii() and name.isprintable()) and shown(name) != name):
        return "has characters in its name that are not allowed in one on some systems"
    if any(_DEVICES.match(part) or part.endswith((" ", ".")) for part in parts if part != "."):
        return "has a name that means something else on Windows"
    is_long = len(name.encode()) > _MOST_NAME_BYTES or any(len(part.encode()) > _MOST_PART_BYTES for part in parts)
    if is_long or len(parts) > _MOST_FOLDERS:
        return "has a name that is too long, or in too many folders"
    return None


def is_hidden(name: str) -> bool:
    """Whether a name is one of those that readers of folders skip, such as `.DS_Store`."""
    parts = [part for part in name.split("/") if part != "."]
    return any((part.startswith(".") and part != "..") or part in _HIDDEN_FOLDERS for part in parts)


def plain(name: str) -> str:
    """The same path without `./` and doubled slashes."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _compared(name: str) -> str:
    return (
        name.lower() if name.isascii() else unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    )
