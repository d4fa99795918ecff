"""What tasks of these tests do: `perform` calls the function of its name in this file."""

import atexit
import ctypes
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.executors.outcome import TaskFailed, TaskInterrupted
from foretune.executors.task_files import write_rank_failure
from tests.waiting import HANG_S


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """Notes that it was performed, and does what the request names."""
    with Path(request["notes"]).open("a") as notes:
        notes.write(f"{request.get('name', '')} {os.getpid()}\n")
    observer.message(f"performing {request['do']}")
    answer: dict[str, Any] = globals()[request["do"]](request)
    return answer


def square(request: dict[str, Any]) -> dict[str, Any]:
    return {"square": request["number"] ** 2}


def environment(request: dict[str, Any]) -> dict[str, Any]:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    return {
        "variables": {name: os.environ.get(name) for name in names},
        "session": os.getsid(0),
        "pid": os.getpid(),
        "modules": sorted(sys.modules),
        "main": str(sys.modules["__main__"].__file__),
        "limit_bytes": resource.getrlimit(resource.RLIMIT_DATA)[0],
    }


def refuse(request: dict[str, Any]) -> dict[str, Any]:
    raise UserError("train.lr: -1 is not valid. Use a number greater than 0.")


def fail_device_memory(request: dict[str, Any]) -> dict[str, Any]:
    raise TaskFailed("out of device memory", "the batch did not fit")


def device_memory(request: dict[str, Any]) -> dict[str, Any]:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def host_memory(request: dict[str, Any]) -> dict[str, Any]:
    blocks = []
    while True:
        blocks.append(bytearray(2**24))


def crash(request: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("no such axis; token=hf_abcdefghijklmnopqrstuvwx")


def import_missing(request: dict[str, Any]) -> dict[str, Any]:
    import no_such_package  # type: ignore[import-not-found]  # noqa: F401

    return {}


def exit_code(request: dict[str, Any]) -> dict[str, Any]:
    os._exit(request["code"])


def segfault(request: dict[str, Any]) -> dict[str, Any]:
    ctypes.string_at(0)
    return {}


def own_signal(request: dict[str, Any]) -> dict[str, Any]:
    os.kill(os.getpid(), signal.Signals[request["signal"]])
    time.sleep(HANG_S)
    return {}


def hang(request: dict[str, Any]) -> dict[str, Any]:
    """With a child that hangs, too. If it is not ended, it leaves a file in the end."""
    survived = f"{request['began']}.survived"
    then = f"import pathlib, time; time.sleep({request.get('child_s', HANG_S)}); pathlib.Path({survived!r}).touch()"
    child = subprocess.Popen([sys.executable, "-c", then])
    Path(request["began"]).write_text(f"{os.getpid()} {child.pid}")
    child.wait()
    return {}


def hang_and_ignore(request: dict[str, Any]) -> dict[str, Any]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return hang(request)


def continue_later(request: dict[str, Any]) -> dict[str, Any]:
    """Interrupts itself so often."""
    count = Path(request["count"])
    done = int(count.read_text()) if count.exists() else 0
    if done < request["times"]:
        count.write_text(str(done + 1))
        raise TaskInterrupted("the node is needed for something else")
    return {"interruptions": done}


def wait_for(request: dict[str, Any]) -> dict[str, Any]:
    """Until the test lets it go on."""
    Path(request["began"]).write_text(str(os.getpid()))
    until_s = time.monotonic() + HANG_S
    while not Path(request["go"]).exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return {"devices": os.environ.get("CUDA_VISIBLE_DEVICES")}


def another_failed(request: dict[str, Any]) -> dict[str, Any]:
    """Sees that another process of the task is gone, which may have said why."""
    if "cause" in request:
        write_rank_failure(Path(request["own_folder"]), 1, "out of device memory", request["cause"])
    raise TaskFailed("crashed", "the connection to another process was closed", is_of_another=True)


def not_json(request: dict[str, Any]) -> dict[str, Any]:
    return {"path": Path()}


def until_interrupted(request: dict[str, Any]) -> dict[str, Any]:
    """Saves and leaves when it is requested to; continued, it is done."""
    saved = Path(request["saved"])
    if saved.exists():
        return {"continued": True}
    requested: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: requested.append(number))
    Path(request["began"]).write_text(str(os.getpid()))
    until_s = time.monotonic() + HANG_S
    while not requested:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    saved.touch()
    raise TaskInterrupted("it was requested to stop and has saved")


def ranks(request: dict[str, Any]) -> dict[str, Any]:
    """As one of several processes; the first one waits for the others, as in a collective."""
    rank = os.environ["SLURM_PROCID"]
    if request.get("failing") == rank:
        raise ValueError("this rank fails")
    Path(f"{request['began']}.{rank}").touch()
    until_s = time.monotonic() + HANG_S
    while not all(Path(f"{request['began']}.{other}").exists() for other in range(int(os.environ["SLURM_NTASKS"]))):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return {"rank": rank, "num": os.environ["SLURM_NTASKS"]}


def square_alone(request: dict[str, Any]) -> dict[str, Any]:
    """Notes where another process performs the same task, or where it had ended before."""
    folder = Path(request["tasks"]) / request["name"]
    with (folder / "alone.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_first = not (folder / "outcome.json").exists()
        except BlockingIOError:
            is_first = False
        if not is_first:
            (folder / "doubled").touch()
        time.sleep(request["seconds"])
    return {"square": request["number"] ** 2}


class _DeviceMemory(RuntimeError):
    """As torch raises it, without torch."""


_DeviceMemory.__name__ = _DeviceMemory.__qualname__ = "OutOfMemoryError"
_DeviceMemory.__module__ = "torch"


def lookalike_device_memory(request: dict[str, Any]) -> dict[str, Any]:
    raise _DeviceMemory("no memory on the device")


def leaves_orderly(request: dict[str, Any]) -> dict[str, Any]:
    """What a program does at its end: finish its threads, then its handlers."""
    ends: list[str] = []
    atexit.register(lambda: Path(request["began"]).write_text(" ".join([*ends, "handler"])))

    def last() -> None:
        time.sleep(0.2)
        ends.append("thread")

    threading.Thread(target=last).start()
    return {}
