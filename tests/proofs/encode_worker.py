"""Encodes a part, but stands still in the middle of the second and third one, once each, until it is killed."""

import os
import signal
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from foretune.core.observer import Observer
from foretune.data.cache import TensorCache
from foretune.data.shards import ShardWriter
from foretune.training.encoded_sets import part_worker

HELD = "held"
"""File in a part's folder: the process that stands still."""
HELD_AT = {"000001": (TensorCache, "put", 3), "000002": (ShardWriter, "add", 5)}
"""By part: in the call of that number, while images are encoded, and when the second shard is being written."""


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    folder = Path(request["folder"])
    if folder.name in HELD_AT and not (folder / HELD).exists():
        owner, method, number = HELD_AT[folder.name]
        _hold_at(owner, method, number, folder / HELD)
    return part_worker.perform(request, observer)


def _hold_at(owner: Any, method: str, number: int, sign: Path) -> None:
    plain, num_calls = getattr(owner, method), 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == number:
            _hold(sign)
        return plain(*arguments, **options)

    mock.patch.object(owner, method, counted).start()


def _hold(sign: Path) -> NoReturn:
    unfinished = sign.with_suffix(".writing")
    unfinished.write_text(str(os.getpid()))
    unfinished.replace(sign)
    while True:
        signal.pause()
