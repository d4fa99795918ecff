"""Keeps the handler of faults, which sees early reads, before that of Python, to which every fault is a crash."""

import faulthandler
from functools import wraps
from typing import Any


def install(device: Any) -> None:
    """Lets `faulthandler.enable` leave the device's handler in front."""
    enable = faulthandler.enable

    @wraps(enable)
    def enabled_behind(*args: Any, **kwargs: Any) -> None:
        enable(*args, **kwargs)
        device.install_fault_handler()

    setattr(faulthandler, "enable", enabled_behind)  # noqa: B010 - type checkers refuse an assignment to a function
