"""Files that a configuration names, read only if they are in its own folder."""

from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from foretune.config.from_trainers.sheet import Sheet, text_of
from foretune.core.errors import UserError
from foretune.core.input_files import read_json, read_text

MOST_BYTES = 2**20


def name_beside(sheet: Sheet, key: str) -> str | None:
    """The last part of the path that a key names."""
    named = text_of(sheet.keys, key)
    return None if named is None else PureWindowsPath(PurePosixPath(named).name).name or None


def read_beside(sheet: Sheet, key: str, folder: Path) -> Any:
    """What a JSON file says that a key names; None if it is not in the folder. Wherever the path leads, only the
    folder is looked at.
    """
    name = name_beside(sheet, key)
    try:
        return None if name is None else read_json(folder / name, MOST_BYTES, within=folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UserError) as error:
        sheet.keys.problems.append(f"{key}: {name} cannot be read as JSON: {error}")
        return None


def text_beside(sheet: Sheet, key: str, folder: Path) -> str | None:
    """The text of a file that a key names; None if it is not in the folder."""
    name = name_beside(sheet, key)
    try:
        return None if name is None else read_text(folder / name, MOST_BYTES, within=folder)
    except FileNotFoundError:
        return None
    except (OSError, UserError) as error:
        sheet.keys.problems.append(f"{key}: {name} cannot be read: {error}")
        return None
