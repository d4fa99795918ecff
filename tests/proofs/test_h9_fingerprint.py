"""H9: a fingerprint of at least 40 fields; each one, changed, changes the environment's id."""

import copy
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse.environments import environment_differences
from foretune.core.values.base import content_hash
from foretune.record.accelerators import _NVIDIA_FIELDS
from foretune.record.environment import VOLATILE, environment_fingerprint, environment_hash
from tests.proofs.made_machine import CHANGES, FILES, VOLATILE_CHANGES, write_machine

pytestmark = pytest.mark.proof

Place = tuple[str | int, ...]
CARD = {"name": "H100", "memory_bytes": 80 * 2**30, "capability": "9.0", "num_processors": 132}


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """The way to every field that is no mapping or list itself."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [inner for key, item in pairs for inner in places(item, (*place, key))]
    yield from found or [place]


def changed(environment: dict[str, Any], place: Place) -> dict[str, Any]:
    """The same environment with another value in one place."""
    result = copy.deepcopy(environment)
    inner: Any = result
    for key in place[:-1]:
        inner = inner[key]
    before = inner[place[-1]]
    inner[place[-1]] = not before if isinstance(before, bool) else before + 1 if isinstance(before, int) else "other"
    return result


@pytest.fixture
def fingerprint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Of this process with torch, on a made machine that tells everything, with a card whose driver is a script."""
    import torch

    monkeypatch.setitem(sys.modules, "torch", torch)
    settings = ",".join(f"{number}" for number in range(len(_NVIDIA_FIELDS)))
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\ncase "$1" in *driver*) echo 570.86.15;; *) echo "{settings}";; esac\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    found = environment_fingerprint(write_machine(tmp_path / "machine"))
    assert found["torch"] is not None
    found["torch"]["devices"] = [CARD]
    return found


def common_control(environment: dict[str, Any]) -> str:
    """What programs usually note of where they ran: system, processor, Python, torch, and the card's name."""
    torch = environment["torch"]
    noted = [environment["system"], environment["machine"], environment["python"], torch["version"], torch["cuda"]]
    return content_hash([*noted, [card["name"] for card in torch["devices"]]])


def test_h9_each_field_changes_the_id(fingerprint: dict[str, Any], report_figure: Callable[[str], None]) -> None:
    found = list(places(fingerprint))
    fields = [place for place in found if place[0] != VOLATILE]
    known = [place for place in fields if not _is_absent(fingerprint, place)]
    before, control = environment_hash(fingerprint), common_control(fingerprint)
    unnoticed = [place for place in fields if environment_hash(changed(fingerprint, place)) == before]
    unlabelled = [
        place
        for place in fields
        if place[0] != "source" and not environment_differences(fingerprint, changed(fingerprint, place))
    ]
    missed = sum(common_control(changed(fingerprint, place)) == control for place in fields)
    report_figure(
        f"{len(fields)} fields ({len(known)} of them known here), {len(fields) - len(unnoticed)} change the id when "
        f"changed; control: the usual note of system, Python, torch and card misses {missed}"
    )
    assert len(known) >= 40
    assert unnoticed == []
    assert unlabelled == [], "a comparison across them names the field"
    assert missed > len(fields) / 2


def _is_absent(environment: dict[str, Any], place: Place) -> bool:
    inner: Any = environment
    for key in place:
        inner = inner[key]
    return inner is None or inner == []


def test_h9_what_is_volatile_does_not(fingerprint: dict[str, Any]) -> None:
    volatile = [place for place in places(fingerprint) if place[0] == VOLATILE]
    assert len(volatile) >= 5
    for place in volatile:
        other = changed(fingerprint, place)
        assert environment_hash(other) == environment_hash(fingerprint)
        assert environment_differences(fingerprint, other) == ()


def test_h9_each_change_of_the_machine_changes_the_id(tmp_path: Path, report_figure: Callable[[str], None]) -> None:
    """The files are changed, not the mapping: a field that nobody reads would be found out."""
    root = write_machine(tmp_path)
    before = environment_hash(environment_fingerprint(root))
    assert environment_hash(environment_fingerprint(root)) == before
    unnoticed = [change for change in CHANGES if _hash_with(root, change) == before]
    noticed = [change for change in VOLATILE_CHANGES if _hash_with(root, change) != before]
    report_figure(
        f"{len(CHANGES) - len(unnoticed)} of {len(CHANGES)} changed facts of a machine change the id; "
        f"{len(VOLATILE_CHANGES)} volatile ones do not"
    )
    assert unnoticed == []
    assert noticed == []
    assert environment_hash(environment_fingerprint(root)) == before, "everything was put back"


def _hash_with(root: Path, change: tuple[str, str, str]) -> str:
    name, before, after = change
    assert before in FILES[name], change
    (root / name).write_text(FILES[name].replace(before, after))
    try:
        return environment_hash(environment_fingerprint(root))
    finally:
        (root / name).write_text(FILES[name])


def test_h9_settings_of_this_process_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setitem(sys.modules, "torch", torch)
    root = write_machine(tmp_path)
    before = environment_hash(environment_fingerprint(root))
    for name in ("OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "KMP_AFFINITY", "MALLOC_CONF"):
        with monkeypatch.context() as set_:
            set_.setenv(name, "another")
            assert environment_hash(environment_fingerprint(root)) != before, name
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads + 1)
    other = environment_hash(environment_fingerprint(root))
    torch.set_num_threads(num_threads)
    assert other != before
    monkeypatch.setattr(platform, "release", lambda: "6.99")
    assert environment_hash(environment_fingerprint(root)) != before
