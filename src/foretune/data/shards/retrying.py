"""Reads and writes that are tried again: a bounded number of times, with a growing wait, and an error that names what
failed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from foretune.core.draws import uniform
from foretune.core.errors import UserError

T = TypeVar("T")


class ShardFault(OSError):
    """A file of a packed set that could not be read or written this time, or is not what its index says."""


class LostShard(UserError):
    """A file of a packed set that could not be read or written in any attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """How often something is tried, and how long to wait in between."""

    num_attempts: int = 5
    first_wait_s: float = 0.5
    growth: float = 3.0
    """The waits are 0.5, 1.5, 4.5 and 13.5 s, each shortened by up to a half, so that many processes do not return at
    the same moment.
    """
    sleep: Callable[[float], object] = time.sleep
    """Injected by tests."""

    def call(self, what: str, attempt: Callable[[], T]) -> T:
        """Returns what an attempt returns. `what` begins the error: "The shard s3://bucket/set/000001.tar".

        Only `ShardFault` is tried again; every other error is raised at once.
        """
        reasons: dict[str, None] = {}
        for number in range(self.num_attempts):
            try:
                return attempt()
            except ShardFault as fault:
                reasons[str(fault)] = None
                if number + 1 == self.num_attempts:
                    break
            self.sleep(self._wait_s(what, number))
        raise LostShard(
            f"{what} failed in {self.num_attempts} attempts: {'; then '.join(reasons)}. Nothing was skipped. If it was "
            "replaced or lost, pack the data again; to verify all shards: foretune data check SET. If the server is "
            "down, start again later: foretune resume RUN"
        )

    def _wait_s(self, what: str, number: int) -> float:
        spread = uniform(number, "order", *what.encode()[-16:])
        return float(self.first_wait_s * self.growth**number * (1 - spread / 2))
