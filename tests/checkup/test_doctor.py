"""The doctor executes what runs need; what fails is a finding, not a crash."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretune.checkup import attention, distributing, examining, versions
from foretune.checkup.examining import examine
from foretune.checkup.finding import Check, CheckResult, examined
from foretune.checkup.training import _optimizer
from foretune.choices.optimizers import OPTIMIZER_SPECS, OptimizerSpec
from foretune.core.errors import MissingExtra
from tests.record.programs import make_program

CPU = torch.device("cpu")


def test_everything_needed_works_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but compiling and collectives, which take a compiler and processes of their own."""
    monkeypatch.chdir(tmp_path)
    checks = tuple(check for check in examining.DEVICE_CHECKS if check.group != "compile")
    monkeypatch.setattr(examining, "DEVICE_CHECKS", checks)
    monkeypatch.setattr(examining, "examine_collectives", lambda: iter(()))
    said: list[str] = []
    findings = list(examine(said.append))
    assert [finding for finding in findings if finding.needed and not finding.works] == []
    on_cpu = {finding.operation: finding for finding in findings if finding.device == "cpu"}
    assert set(on_cpu) >= {"attention", "convolution", "LoRA", "gradient checkpointing", "training step fp32"}
    for kind in ("int8", "float8", "nf4", "int8-bnb"):
        assert on_cpu[f"quantised layer {kind}"].works, on_cpu[f"quantised layer {kind}"].detail
    assert on_cpu["attention kernel math"].works
    assert on_cpu["optimizer adamw"].works
    assert "copies from page-locked memory" not in on_cpu, "a CPU has no use for it"
    hosts = {finding.operation for finding in findings if finding.group == "host"}
    assert hosts == {"pipelines import", "checkpoint on disk", "loader process", "profiler", "sensors"}
    assert all(finding.detail and finding.seconds >= 0 for finding in findings)
    assert len(said) > len(on_cpu), "each is announced before it is done"
    assert list(tmp_path.iterdir()) == [], "it tidies up"


@pytest.mark.slow
def test_a_compiled_block_works_here() -> None:
    (check,) = (check for check in examining.DEVICE_CHECKS if check.group == "compile")
    finding = examined(check, CPU)
    assert finding.works, finding.detail
    assert "off the uncompiled block" in finding.detail


@pytest.mark.slow
def test_two_processes_add_up_here() -> None:
    found = {finding.operation: finding for finding in distributing._together("gloo", 2)}
    assert set(found) == {f"gloo {name}" for name in distributing.COLLECTIVES}
    for finding in found.values():
        assert finding.works, finding.detail
        assert finding.detail == "2 processes: the right values arrived"


def test_a_group_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        distributing, "_answer", lambda process: (process.kill(), process.wait(), ("", "boom\nno route"))[2]
    )
    findings = list(distributing._together("gloo", 2))
    assert {finding.detail for finding in findings} == {"no route"}
    assert not any(finding.works for finding in findings)


def found_by(*checks: Check) -> list[CheckResult]:
    return [examined(check, CPU) for check in checks]


def test_what_fails_is_a_finding() -> None:
    def break_down(device: torch.device) -> str:
        raise RuntimeError("no kernel image\nmore lines")

    def silent(device: torch.device) -> str:
        raise ValueError

    def missing(device: torch.device) -> str:
        raise MissingExtra("nf4", "quantize")

    found = found_by(
        Check("training", "matrix product", break_down, needed=True),
        Check("training", "luxury", silent),
        Check("quantisation", "nf4", missing),
    )
    assert [(f.device, f.operation, f.works, f.needed, f.detail, f.remedy) for f in found] == [
        ("cpu", "matrix product", False, True, "RuntimeError: no kernel image", None),
        ("cpu", "luxury", False, False, "ValueError: no reason given", None),
        ("cpu", "nf4", False, False, "not installed", "pip install 'foretune[quantize]'"),
    ]


def test_wrong_numbers_are_a_finding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that answers, but wrongly: its attention is off."""
    exact = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a: exact(*a) * 1.5)
    (finding,) = found_by(attention.CHECKS[0])
    assert not finding.works
    assert "off the plain formula" in finding.detail


def distribution(version: str, *requires: str) -> Any:
    return SimpleNamespace(version=version, requires=list(requires))


def test_versions_that_do_not_go_together_are_named_with_the_command() -> None:
    there = {
        "foretune": distribution("0.1", "transformers<6,>=5.22; extra == 'train'", "rich>=15"),
        "transformers": distribution("4.57.0", "tokenizers>=0.22", "flax; extra == 'flax'"),
        "tokenizers": distribution("0.23.3"),
        "torchvision": distribution("0.27.0", "torch==2.12.0"),
        "torch": distribution("2.13.0+cpu"),
        "flax": distribution("0.1"),
    }
    found = list(versions.unmet_demands(there.get))
    assert [(one.text, one.remedy) for one in found] == [
        (
            "foretune 0.1 needs transformers<6,>=5.22, installed is 4.57.0",
            "pip install 'transformers<6,>=5.22'",
        ),
        ("torchvision 0.27.0 needs torch==2.12.0, installed is 2.13.0+cpu", "pip install 'torch==2.12.0'"),
    ]


def fake_torch(cuda: str | None, *, available: bool) -> Any:
    return SimpleNamespace(
        __version__="2.13.0+cpu",
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=SimpleNamespace(is_available=lambda: available),
    )


def test_a_torch_that_was_built_for_other_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert list(versions.unfit_build(fake_torch(None, available=False), tmp_path)) == []
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 580.65")
    (found,) = versions.unfit_build(fake_torch("12.8", available=False), tmp_path)
    assert found.text == "an NVIDIA driver is loaded, but nvidia-smi lists no card"
    make_program(tmp_path / "bin", "nvidia-smi", "echo 'NVIDIA L4'", monkeypatch)
    (found,) = versions.unfit_build(fake_torch(None, available=False), tmp_path)
    assert found.text.startswith("NVIDIA L4 is not used, because torch 2.13.0+cpu is built for CPUs only")
    assert "--torch-backend=auto torch==2.13.0 " in found.remedy
    (found,) = versions.unfit_build(fake_torch("12.8", available=False), tmp_path)
    assert "built for CUDA 12.8 and cannot open it" in found.text
    assert list(versions.unfit_build(fake_torch("12.8", available=True), tmp_path)) == []


def test_the_versions_installed_here_go_together() -> None:
    findings = list(versions.examine_versions())
    assert all(finding.works for finding in findings), [finding.detail for finding in findings]


@pytest.mark.parametrize(
    "spec", [spec for spec in OPTIMIZER_SPECS.values() if spec.finds_lr], ids=lambda spec: spec.name
)
def test_an_optimizer_that_hardly_moves_the_weights_does_not_pass(
    spec: OptimizerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ten steps such an optimizer has found no learning rate yet; a drop by rounding is no success."""
    assert "in 100 steps" in _optimizer(spec)(torch.device("cpu"))
    monkeypatch.setattr(
        "foretune.step.optimizing.build_optimizer", lambda _, weights: torch.optim.SGD(weights, lr=1e-6)
    )
    with pytest.raises(AssertionError, match="it does not learn"):
        _optimizer(spec)(torch.device("cpu"))
