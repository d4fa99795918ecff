"""A mistake that somebody could make, and the tests that must notice it."""

from collections.abc import Sequence
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
    cpu_tests: tuple[str, ...] = ()
    """If `tests` need a GPU, real or simulated: the nearest tests that need none, to count what they miss."""


def bug(name: str, file: str, old: str, new: str, *tests: str) -> Bug:
    """Paths are relative to the package, and to the tests."""
    return gpu_bug(name, file, old, new, simulated=tests)


def gpu_bug(name: str, file: str, old: str, new: str, *, simulated: Sequence[str], cpu: Sequence[str] = ()) -> Bug:
    """A mistake that only a GPU shows, and its tests with and without one."""
    return Bug(name, f"src/foretune/{file}", old, new, _in_tests(simulated), _in_tests(cpu))


def _in_tests(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"tests/{path}" for path in paths)
