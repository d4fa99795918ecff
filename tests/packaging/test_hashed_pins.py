"""The packages that CI installs are pinned by version and by hash, and no file names where they come from."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_CONSTRAINTS = _ROOT / "constraints"
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==(\S+?)( ; .*)? \\$")
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lines_of(name: str) -> list[str]:
    lines = (_CONSTRAINTS / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def hashed_pins(lines: list[str]) -> dict[str, str]:
    """Version by package; fails on a line that is neither a pin nor a hash, and on a pin without a hash."""
    found: dict[str, str] = {}
    hashes: dict[str, int] = {}
    name = ""
    for line in lines:
        if (pin := _PIN.match(line)) is not None:
            name = canonical(pin[1])
            assert name not in found, f"{name} is pinned twice"
            found[name], hashes[name] = pin[2], 0
        else:
            assert _HASH.match(line), f"neither a pin nor a hash: {line}"
            hashes[name] += 1
    assert [name for name, num in hashes.items() if not num] == []
    return found


def test_every_pin_has_a_hash_and_the_version_of_the_constraints() -> None:
    pins = dict(line.split("==") for line in lines_of("dev.txt"))
    assert hashed_pins(lines_of("hashed.txt")) == {canonical(name): version for name, version in pins.items()}


def test_torch_is_not_among_them() -> None:
    """Its builds differ between machines, and `make setup TORCH=...` chooses one."""
    assert not {"torch", "triton", "torchvision"} & set(hashed_pins(lines_of("hashed.txt")))


def test_no_file_has_an_address() -> None:
    for path in _CONSTRAINTS.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"://|--(extra-)?index|--find-links|--trusted| @ ", text), path.name


@pytest.mark.parametrize(
    "line",
    ["numpy==2.4.6", "numpy>=2 \\", "    --hash=md5:0123", "--index-url x", "numpy @ file:///x \\"],
)
def test_control_other_lines_are_seen(line: str) -> None:
    with pytest.raises(AssertionError):
        hashed_pins([*lines_of("hashed.txt"), line])


def audit(report: dict[str, object], folder: Path) -> tuple[int, str]:
    (folder / "report.json").write_text(json.dumps(report))
    command: list[str | Path] = [sys.executable, _ROOT / ".ci" / "audit", "--report", folder / "report.json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    return finished.returncode, finished.stdout + finished.stderr


_SOUND: dict[str, object] = {"name": "a", "version": "1", "vulns": []}
_UNKNOWN: dict[str, object] = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
_VULNERABLE: dict[str, object] = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]}


@pytest.mark.parametrize(
    ("packages", "status", "text"),
    [
        ([_SOUND], 0, "1 packages audited, 0 with known vulnerabilities"),
        ([_UNKNOWN, _UNKNOWN], 2, "nothing was audited"),
        ([_SOUND, _UNKNOWN], 2, "not audited, because the service does not know them: b"),
        ([_VULNERABLE, _UNKNOWN], 1, "c 2: CVE-1, CVE-2"),
    ],
)
def test_an_audit_that_saw_nothing_does_not_pass(
    packages: list[object], status: int, text: str, tmp_path: Path
) -> None:
    code, said = audit({"dependencies": packages}, tmp_path)
    assert code == status
    assert text in said


def test_extras_are_checked_where_nothing_is_resolved() -> None:
    """`pip check` looks at no extras, and packages by their hashes are installed without their dependencies."""
    checked = subprocess.run(
        [sys.executable, _ROOT / ".ci" / "installed_extras", "train", "hub"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_control_a_missing_extra_is_named(tmp_path: Path) -> None:
    metadata = tmp_path / "foretune-0.1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Metadata-Version: 2.4\nName: foretune\nVersion: 0.1.0\nProvides-Extra: a\nProvides-Extra: b\n"
        "Requires-Dist: foretune[b] ; extra == 'a'\nRequires-Dist: no-such-package>=2 ; extra == 'b'\n"
        "Requires-Dist: packaging>=9000 ; extra == 'b'\n"
    )
    checked = subprocess.run(
        [sys.executable, _ROOT / ".ci" / "installed_extras", "a"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert checked.returncode == 1
    assert "constraints/hashed.txt lacks no-such-package>=2, packaging>=9000" in checked.stderr
