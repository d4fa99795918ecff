"""The fingerprint says what a number was measured in, and no secret."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from foretune import __version__
from foretune.record.environment import VOLATILE, environment_fingerprint, environment_hash
from tests.record.programs import make_program

CANARY = "canary-4f1c9d2e"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is in no git checkout; other tests may or may not have imported torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return tmp_path


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_it_says_what_matters() -> None:
    found = environment_fingerprint()
    assert found["foretune"] == __version__
    assert found["python"] == platform.python_version()
    assert found["num_logical_cpus"] == os.cpu_count()
    assert found["memory_bytes"] > 2**28
    assert found["packages"]["pydantic"].startswith("2.")
    assert found["torch"] is None
    assert found["source"] is None


@pytest.mark.parametrize(
    ("installed", "recorded"),
    [
        ({}, None),
        ({"nvidia-cudnn-cu12": "9.10"}, "9.10"),
        ({"nvidia-cudnn-cu13": "9.20"}, "9.20"),
        ({"nvidia-cudnn-cu12": "9.10", "nvidia-cudnn-cu13": "9.20"}, "9.20 (cu13), 9.10 (cu12)"),
    ],
)
def test_cudnn_is_found_under_the_name_of_each_cuda(
    installed: dict[str, str], recorded: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package in installed:
            return installed[package]
        raise PackageNotFoundError(package)

    monkeypatch.setattr("importlib.metadata.version", version)
    packages = environment_fingerprint()["packages"]
    assert packages["nvidia-cudnn"] == recorded
    assert packages["nvidia-nccl"] is None
    assert not any(name.startswith("nvidia") and name.endswith(("12", "13")) for name in packages)


def test_it_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "MY_CANARY"):
        monkeypatch.setenv(name, f"{CANARY}-{name}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    text = json.dumps(environment_fingerprint())
    assert CANARY not in text
    assert '"CUDA_VISIBLE_DEVICES": "0,1"' in text


def test_it_is_json_and_equal_when_asked_twice() -> None:
    first, second = environment_fingerprint(), environment_fingerprint()
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert environment_hash(first) == environment_hash(second)
    del first[VOLATILE], second[VOLATILE]
    assert first == second
    assert environment_hash(first) == environment_hash(json.loads(json.dumps(first)))


def test_another_environment_has_another_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    first = environment_hash(environment_fingerprint())
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert environment_hash(environment_fingerprint()) != first


def test_it_does_not_bring_torch_in() -> None:
    code = (
        "import sys; from foretune.record.environment import environment_fingerprint; environment_fingerprint();"
        "print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_the_source_revision(here: Path) -> None:
    git("init", "--quiet")
    (here / "a.txt").write_text("a")
    git("add", "a.txt")
    git("commit", "--quiet", "-m", "first")
    source = environment_fingerprint()["source"]
    assert len(source["commit"]) == 40
    assert source["dirty"] is False
    (here / "a.txt").write_text("b")
    assert environment_fingerprint()["source"] == {"commit": source["commit"], "dirty": True}


@pytest.mark.parametrize(
    ("script", "driver"),
    [("echo 570.86.15; echo 570.86.15", "570.86.15"), ("echo broken; exit 9", None), ("exit 0", None)],
)
def test_the_driver(here: Path, monkeypatch: pytest.MonkeyPatch, script: str, driver: str | None) -> None:
    make_program(here / "bin", "nvidia-smi", script, monkeypatch)
    assert environment_fingerprint()["nvidia_driver"] == driver


def test_the_devices_that_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="A100", total_memory=80 * 2**30, major=8, minor=0, multi_processor_count=108)
    torch = SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda="12.8", hip=None),
        cuda=SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda _: card),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)),
        get_num_threads=lambda: 8,
        get_float32_matmul_precision=lambda: "highest",
        are_deterministic_algorithms_enabled=lambda: True,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = environment_fingerprint()["torch"]
    assert (
        found["devices"]
        == [{"name": "A100", "memory_bytes": 80 * 2**30, "capability": "8.0", "num_processors": 108}] * 2
    )
    assert (found["version"], found["cuda"], found["deterministic"]) == ("2.13.0", "12.8", True)


def test_limits_of_a_container_in_either_layout(tmp_path: Path) -> None:
    newer, older = tmp_path / "newer/sys/fs/cgroup", tmp_path / "older/sys/fs/cgroup"
    (older / "cpu").mkdir(parents=True)
    (older / "memory").mkdir()
    newer.mkdir(parents=True)
    (newer / "cpu.max").write_text("150000 100000\n")
    (newer / "memory.max").write_text("max\n")
    (older / "cpu/cpu.cfs_quota_us").write_text("150000\n")
    (older / "cpu/cpu.cfs_period_us").write_text("100000\n")
    (older / "memory/memory.limit_in_bytes").write_text("8589934592\n")
    assert environment_fingerprint(tmp_path / "newer")["container"]["cpu_quota"] == "150000 100000"
    assert environment_fingerprint(tmp_path / "newer")["container"]["memory_limit_bytes"] is None
    found = environment_fingerprint(tmp_path / "older")["container"]
    assert (found["cpu_quota"], found["memory_limit_bytes"]) == ("150000 100000", 8 * 2**30)


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    """No Linux, or one that hides its files: absent is None, and nothing breaks."""
    found = environment_fingerprint(tmp_path)
    assert found["processor"]["governor"] is None
    assert found["numa"]["num_nodes"] is None
    assert found["container"]["cpu_quota"] is None
    assert found["process"]["allocator"] == "system"


def test_how_cards_are_set(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "96.00.5E.00.01, 700.00 W, 1980 MHz, 2619 MHz, 1830 MHz, Enabled, Default, Enabled, Disabled, 5, 16"
    make_program(here / "bin", "nvidia-smi", f'echo "{row}"', monkeypatch)
    (settings,) = environment_fingerprint()["nvidia_settings"]
    assert (settings["power.limit"], settings["pcie.link.width.max"]) == ("700.00 W", "16")
    make_program(here / "bin", "nvidia-smi", "echo 570.86.15", monkeypatch)
    assert environment_fingerprint()["nvidia_settings"] is None, "an answer of another form is no answer"
