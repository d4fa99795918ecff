"""Files that the user named on the command line."""

from pathlib import Path

from foretune.core.errors import UserError


def write_file(path: Path, text: str) -> None:
    """Writes the file, its folders included; why that cannot be done is the user's to know."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}. Choose another place.") from error
