"""The doctor executes what a training needs; what fails is a finding, not a crash."""

from pathlib import Path

import pytest
import torch

from foretune.run import doctor
from foretune.run.doctor import _Check, examine


def test_everything_needed_works_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    findings = list(examine())
    assert [finding for finding in findings if finding.needed and not finding.works] == []
    operations = {finding.operation for finding in findings if finding.device == "cpu"}
    assert operations >= {"attention", "convolution", "LoRA", "gradient checkpointing", "training step fp32"}
    assert {finding.operation for finding in findings if finding.device == "host"} == {
        "pipelines import",
        "checkpoint on disk",
    }
    assert all(finding.detail and finding.seconds >= 0 for finding in findings)
    assert list(tmp_path.iterdir()) == [], "it tidies up"


def test_what_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(device: torch.device) -> str:
        raise RuntimeError("no kernel image\nmore lines")

    def silent(device: torch.device) -> str:
        raise ValueError

    checks = (_Check("matrix product", break_down), _Check("luxury", silent, needed=False))
    monkeypatch.setattr(doctor, "_CHECKS", checks)
    monkeypatch.setattr(doctor, "_HOST_CHECKS", ())
    found = [(f.device, f.operation, f.works, f.needed, f.detail) for f in examine()][-2:]
    assert found == [
        ("cpu", "matrix product", False, True, "RuntimeError: no kernel image"),
        ("cpu", "luxury", False, False, "ValueError: no reason given"),
    ]


def test_wrong_numbers_are_a_finding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that answers, but wrongly: its attention is off."""
    attention = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a: attention(*a) * 1.5)
    monkeypatch.setattr(doctor, "_CHECKS", (_Check("attention", doctor._attention),))
    monkeypatch.setattr(doctor, "_HOST_CHECKS", ())
    *_, finding = examine()
    assert not finding.works
    assert "off the plain formula" in finding.detail
