"""How long a test waits for a process that it started."""

import time
from collections.abc import Callable

HANG_S = 900.0
"""No measure of anything, and far above what a busy machine takes: whoever has not ended by then hangs."""


def waited_until(is_so: Callable[[], bool]) -> None:
    """Returns when something is so that other processes or threads bring about."""
    until_s = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < until_s, "it never came"
        time.sleep(0.02)
