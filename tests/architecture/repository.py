"""What must not be in the files of the repository: places on one machine, package indexes, large files."""

import re
import subprocess
from pathlib import Path

MOST_FILE_BYTES = 5 * 10**6

# Written in parts, so that this file does not hold what it looks for.
_MACHINE_PLACES = (
    "/work/" + r"(?:main|shared|\.\w+)",
    "/root" + r"/[\w.]",
    "/opt/" + "(?:pypi|wheels)",
    "/tmp" + r"/(?:venv|bash_jobs)\b",
)
_INDEX_HOSTS = (r"pypi\." + "(?:org|python)", r"python" + r"hosted\.org", r"download\.py" + r"torch\.org")
_FORBIDDEN = re.compile("|".join((*(rf"(?<![\w.]){place}" for place in _MACHINE_PLACES), *_INDEX_HOSTS)).encode())


def repository_files(root: Path) -> list[Path] | None:
    """Files that are tracked or would be by `git add .`; None where git cannot tell."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    # A tracked file that was deleted is still listed.
    return [path for name in listed.decode().split("\0") if name and (path := root / name).is_file()]


def machine_places(files: list[Path]) -> list[str]:
    """Lines that name a place on one machine or the host of a package index."""
    violations = []
    for path in files:
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if found := _FORBIDDEN.search(line):
                violations.append(f"{path}:{number}: {found.group().decode()}")
    return violations


def large_files(files: list[Path]) -> list[str]:
    """Files that make every clone heavy."""
    return [f"{path} has {path.stat().st_size} bytes" for path in files if path.stat().st_size > MOST_FILE_BYTES]
