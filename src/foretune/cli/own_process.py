"""What the command line does to its process once the libraries are imported. The Python API leaves a process alone."""

import gc
from functools import cache

from foretune.cli.quiet import quieten


def imports_done() -> None:
    """Silences the libraries, and exempts what is imported from garbage collection."""
    quieten()
    _freeze()


@cache
def _freeze() -> None:
    """Modules stay until the process ends. Each full collection would go through all of their objects, and a run
    collects after it has encoded, validated and saved.

    Once per process: a study imports before each of its parts, and what a part has left is garbage.
    """
    gc.freeze()
