"""How many accelerators an executor gave to a task: a task that sees none of them must not train on the CPU."""

import os

_VARIABLE = "FORETUNE_GIVEN_DEVICES"


def give_devices(count: int) -> None:
    """Stores the number for this process and those that it starts."""
    os.environ[_VARIABLE] = str(count)


def num_given_devices() -> int:
    """Returns the number; 0 outside of a task."""
    return int(os.environ.get(_VARIABLE, "0"))
