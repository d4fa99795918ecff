"""Hostile files read one after the other in a process with limits, and what came of each: for the fork server."""

import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.proofs import hostile_contents, hostile_pickles
from tests.proofs.hostile_places import PLACES, REFUSALS, Place
from tests.proofs.hostile_reading import limit_resources

# What code does that a file has smuggled in. Imports raise events too, so these are few and unmistakable.
_SUSPICIOUS = (
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pickle.find_class"),
    *("socket.connect", "socket.getaddrinfo", "ctypes.dlopen", "webbrowser.open", "sqlite3.connect"),
)
CANARY = "canary"
VALID = "what lies there normally"


def contents_of(place: Place) -> dict[str, hostile_contents.Make]:
    """Everything that is put in this place."""
    others = {**hostile_contents.BOMBS, **hostile_contents.SPECIAL}
    others |= hostile_contents.TENSORS if place.holds_tensors else hostile_contents.TEXTS
    return {**{name: _pickle(content) for name, content in hostile_pickles.ALL.items()}, **others}


def _pickle(content: hostile_pickles.Content) -> hostile_contents.Make:
    return lambda path: path.write_bytes(content(path.with_name(f"{CANARY}-{path.name}")))


class Watch:
    """Events of the interpreter that only foreign code raises. A hook cannot be removed, so it is switched."""

    def __init__(self) -> None:
        self.is_on, self.seen = False, list[str]()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event in _SUSPICIOUS:
            self.seen.append(f"{event} {arguments!r:.80}")


def read_place(name: str, contents: list[str], folder: str, answers: str) -> None:
    """Reads each of these contents in this place, the valid one first."""
    limit_resources()
    place, watch = PLACES[name], Watch()
    makes = contents_of(place)
    with Path(answers).open("a") as log:
        for content in [VALID, VALID, *contents]:
            inner = Path(folder) / "case"
            inner.mkdir()
            log.write(json.dumps({"content": content}) + "\n")
            log.flush()  # if it hangs, this is the one
            target = place.make(inner)
            if content != VALID:
                target.unlink(missing_ok=True)
                makes[content](target)
                place.after(inner)
            found = _read(place, inner, target, watch)
            log.write(json.dumps({"content": content, **found}) + "\n")
            log.flush()
            shutil.rmtree(inner)


def _read(place: Place, folder: Path, target: Path, watch: Watch) -> dict[str, Any]:
    before = set(map(str, folder.rglob("*")))
    watch.seen, watch.is_on = [], True
    began_s = time.process_time()
    try:
        place.read(folder)
        end, message = "read", ""
    except REFUSALS as error:
        end, message = "refused", str(error)
    except BaseException:  # noqa: BLE001 - whatever it is, it is the answer
        end, message = "crashed", traceback.format_exc()
    taken_s = time.process_time() - began_s
    watch.is_on = False
    written = sorted(path for path in set(map(str, folder.rglob("*"))) - before if CANARY in os.path.basename(path))  # noqa: PTH119
    return {
        "end": end,
        "names_file": any(name in message for name in (target.name, *place.also_named)),
        "message": message[-600:],
        "processor_s": taken_s,
        "executed": [*watch.seen, *written],
    }


def read_carelessly(folder: str, answers: str) -> None:
    """What careless readers do with every file that holds code, and whether the watch would hear it."""
    limit_resources()
    watch, found = Watch(), {}
    for number, (name, content) in enumerate(hostile_pickles.ALL.items()):
        canary = Path(folder) / f"{CANARY}-{number:03d}"
        data = content(canary)
        watch.seen, watch.is_on = [], True
        hostile_pickles.read_carelessly(data)
        watch.is_on = False
        is_there = any(path.name.startswith(canary.name) for path in Path(folder).iterdir())
        found[name] = {"canary": is_there, "heard": watch.seen[:1]}
    Path(answers).write_text(json.dumps(found))
