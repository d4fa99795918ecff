"""A mistake that somebody could make, and the tests that must notice it."""

from typing import NamedTuple


class Bug(NamedTuple):
    """One change of the source."""

    name: str
    file: str
    old: str
    """Text that occurs in the file once."""
    new: str
    tests: tuple[str, ...]
    """Nearest to it: files, or single tests. One of them must fail."""


def bug(name: str, file: str, old: str, new: str, *tests: str) -> Bug:
    """Paths are relative to the package, and to the tests."""
    return Bug(name, f"src/foretune/{file}", old, new, tuple(f"tests/{test}" for test in tests))
