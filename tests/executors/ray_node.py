"""`ray start` for busy machines: `python -m tests.executors.ray_node start ...`.

Ray gives a node 30 s to join its cluster, and no option changes that: here its clock goes slower while it waits.
"""

import time
from typing import Any

import ray._private.node
from ray.scripts.scripts import main

_SLOWER = 30.0


class _SlowClock:
    """Python's module `time` with another clock."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() / _SLOWER


if __name__ == "__main__":
    ray._private.node.time = _SlowClock()
    main()
