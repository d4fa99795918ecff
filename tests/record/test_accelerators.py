"""Devices as their drivers report them: nvidia-smi, the amdgpu module's files, Apple silicon."""

import os
import platform
from pathlib import Path

import pytest

from foretune.core.units import GIB, MIB
from foretune.record.accelerators import Accelerator, accelerators_here, nvidia_pages_to_host
from tests.record.programs import make_program


@pytest.fixture
def no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any driver; its programs are made in `bin`."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["NVIDIA GeForce RTX 4090, 24564"], [("NVIDIA GeForce RTX 4090", 24564)]),
        (["NVIDIA L4, 23034", "NVIDIA L4, 23034"], [("NVIDIA L4", 23034), ("NVIDIA L4", 23034)]),
        (["Tesla T4, 15360", "NVIDIA H100 80GB HBM3, 81559"], [("Tesla T4", 15360), ("NVIDIA H100 80GB HBM3", 81559)]),
        (["A card, with a comma, 8192"], [("A card, with a comma", 8192)]),
        (["NVIDIA GB10, [N/A]"], []),
        (["No devices were found"], []),
        ([], []),
    ],
    ids=["one", "two of a kind", "two kinds", "comma", "no memory of its own", "none", "silence"],
)
def test_nvidia_cards(
    no_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], found: list[tuple[str, int]]
) -> None:
    script = "\n".join(f'echo "{line}"' for line in lines)
    make_program(no_path / "bin", "nvidia-smi", script, monkeypatch)
    assert accelerators_here(no_path) == [Accelerator(name, "cuda", mib * MIB) for name, mib in found]


def test_nvidia_is_asked_for_what_is_read(no_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the columns and the absence of a unit are what the lines are read by."""
    script = (
        'test "$*" = "--query-gpu=name,memory.total --format=csv,noheader,nounits" || exit 2\necho "NVIDIA L40S, 46068"'
    )
    make_program(no_path / "bin", "nvidia-smi", script, monkeypatch)
    assert accelerators_here(no_path) == [Accelerator("NVIDIA L40S", "cuda", 46068 * MIB)]


def test_a_driver_that_fails_has_no_cards(no_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'echo "NVIDIA-SMI has failed because it could not talk to the driver, 9"\nexit 9'
    make_program(no_path / "bin", "nvidia-smi", script, monkeypatch)
    assert accelerators_here(no_path) == []


def amd_card(root: Path, number: int, total_bytes: int, title: str | None) -> None:
    device = root / f"sys/class/drm/card{number}/device"
    device.mkdir(parents=True)
    (device / "mem_info_vram_total").write_text(f"{total_bytes}\n", encoding="ascii")
    if title is not None:
        (device / "product_name").write_text(f"{title}\n", encoding="utf-8")


@pytest.mark.usefixtures("no_path")
def test_amd_cards(tmp_path: Path) -> None:
    (tmp_path / "sys/class/kfd").mkdir(parents=True)
    amd_card(tmp_path, 0, 512 * MIB, None)
    amd_card(tmp_path, 1, 206_141_652_992, "AMD Instinct MI300X OAM")
    amd_card(tmp_path, 2, 24 * GIB, None)
    amd_card(tmp_path, 3, 16 * GIB, "")
    # A connector of a card, and a card of another driver, have no such file.
    (tmp_path / "sys/class/drm/card1-DP-1/device").mkdir(parents=True)
    (tmp_path / "sys/class/drm/card4/device").mkdir(parents=True)
    assert accelerators_here(tmp_path) == [
        Accelerator("AMD Instinct MI300X OAM", "rocm", 206_141_652_992),
        Accelerator("AMD GPU", "rocm", 24 * GIB),
        Accelerator("AMD GPU", "rocm", 16 * GIB),
    ]


@pytest.mark.usefixtures("no_path")
def test_an_amd_card_without_rocm_is_none(tmp_path: Path) -> None:
    amd_card(tmp_path, 0, 24 * GIB, "AMD Radeon RX 7900 XTX")
    assert accelerators_here(tmp_path) == []


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [("Darwin", "arm64", "Apple M3 Pro"), ("Darwin", "x86_64", None), ("Linux", "arm64", None)],
)
def test_apple_silicon(
    no_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, machine: str, name: str | None
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    make_program(
        no_path / "bin", "sysctl", 'test "$*" = "-n machdep.cpu.brand_string" && echo Apple M3 Pro', monkeypatch
    )
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert accelerators_here(no_path) == ([] if name is None else [Accelerator(name, "mps", memory_bytes)])


def test_apple_silicon_without_a_name(no_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    make_program(no_path / "bin", "sysctl", "exit 1", monkeypatch)
    assert [found.name for found in accelerators_here(no_path)] == ["Apple silicon"]


@pytest.mark.parametrize(
    ("system", "release", "model", "pages"),
    [
        ("Windows", "11", "WDDM", True),
        ("Windows", "11", "TCC", False),
        ("Windows", "11", None, True),
        ("Linux", "6.8.0-45-generic", "[N/A]", False),
        ("Linux", "5.15.137.3-microsoft-standard-WSL2", "[N/A]", True),
    ],
)
def test_a_driver_that_pages_to_the_host(
    no_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, release: str, model: str | None, pages: bool
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "release", lambda: release)
    if model is not None:
        script = f'test "$1" = "--query-gpu=driver_model.current" && echo "{model}"'
        make_program(no_path / "bin", "nvidia-smi", script, monkeypatch)
    assert nvidia_pages_to_host() is pages
