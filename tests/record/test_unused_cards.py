"""Cards that a driver reports and torch does not use: why, and the command that installs a torch that does."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretune.record.unused_cards import unused_cards
from tests.record.programs import make_program
from tests.record.test_accelerators import amd_card, no_path  # noqa: F401 - a fixture

CPU_BUILD = "uv pip install --reinstall-package torch --torch-backend=auto torch==2.13.0"


def fake_torch(cuda: str | None = None, hip: str | None = None, *, available: bool = False) -> Any:
    return SimpleNamespace(
        __version__="2.13.0" if cuda or hip else "2.13.0+cpu",
        version=SimpleNamespace(cuda=cuda, hip=hip),
        cuda=SimpleNamespace(is_available=lambda: available),
    )


@pytest.fixture
def nvidia(no_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """A machine with an NVIDIA card and a driver for CUDA 12.4."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    script = (
        'case "$1" in --query-gpu=name) echo "NVIDIA GeForce RTX 4090" ;;\n'
        '--query-gpu=name,*) echo "NVIDIA GeForce RTX 4090, 24564" ;;\n'
        '*) echo "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |" ;; esac'
    )
    make_program(no_path / "bin", "nvidia-smi", script, monkeypatch)
    return no_path


def test_a_build_for_cpus(nvidia: Path) -> None:
    """On Windows the default package index has this build, so that pip would install it once more."""
    found = unused_cards(fake_torch(), nvidia)
    assert found is not None
    assert found.text == "NVIDIA GeForce RTX 4090 is not used, because torch 2.13.0+cpu is built for CPUs only"
    assert found.remedy.startswith(CPU_BUILD)
    assert "https://pytorch.org/get-started/locally" in found.remedy


def test_a_driver_that_is_older_than_the_build(nvidia: Path) -> None:
    found = unused_cards(fake_torch(cuda="13.0"), nvidia)
    assert found is not None
    assert "torch 2.13.0 is built for CUDA 13.0 and the NVIDIA driver supports CUDA 12.4 at most" in found.text
    assert found.remedy.startswith(CPU_BUILD)
    assert found.remedy.endswith("or update the driver")


def test_a_driver_of_the_same_major_version_is_not_blamed(nvidia: Path) -> None:
    found = unused_cards(fake_torch(cuda="12.8"), nvidia)
    assert found is not None
    assert "cannot open it" in found.text
    assert found.remedy.startswith("nvidia-smi; python -c ")


@pytest.mark.parametrize("words", ["CUDA Version: 13.1", "CUDA UMD Version: 13.1", "CUDA Version         : 13.1"])
def test_how_drivers_name_their_cuda(nvidia: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    script = f'case "$1" in --query-gpu=name) echo "NVIDIA L4" ;; *) echo "| {words} |" ;; esac'
    make_program(nvidia / "bin", "nvidia-smi", script, monkeypatch)
    found = unused_cards(fake_torch(cuda="14.0"), nvidia)
    assert found is not None
    assert "supports CUDA 13.1 at most" in found.text


def test_a_build_for_rocm_on_nvidia(nvidia: Path) -> None:
    found = unused_cards(fake_torch(hip="7.0"), nvidia)
    assert found is not None
    assert found.text.endswith("built for ROCm 7.0, which is for AMD")


def test_a_build_for_cuda_on_amd(no_path: Path) -> None:  # noqa: F811
    (no_path / "sys/class/kfd").mkdir(parents=True)
    for number in range(2):
        amd_card(no_path, number, 192 * 2**30, "AMD Instinct MI300X")
    found = unused_cards(fake_torch(cuda="13.0"), no_path)
    assert found is not None
    assert found.text.startswith("AMD Instinct MI300X and 1 more are not used, because torch 2.13.0 is built for CUDA")
    assert found.remedy.startswith(CPU_BUILD)


@pytest.mark.parametrize(("value", "is_silent"), [("", True), ("-1", True), ("7", False)])
def test_a_card_that_the_environment_hides(
    nvidia: Path, monkeypatch: pytest.MonkeyPatch, value: str, is_silent: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    found = unused_cards(fake_torch(cuda="12.4"), nvidia)
    assert (found is None) is is_silent
    if found is not None:
        assert "CUDA_VISIBLE_DEVICES=7 names no card" in found.text
        assert found.remedy == "unset CUDA_VISIBLE_DEVICES"


def test_nothing_to_report(nvidia: Path, no_path: Path) -> None:  # noqa: F811
    assert unused_cards(fake_torch(cuda="13.0", available=True), nvidia) is None
    (no_path / "bin/nvidia-smi").unlink()
    assert unused_cards(fake_torch(), no_path) is None
