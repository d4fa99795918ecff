"""`make gpu_proofs` on a machine without a GPU: what it would run, how it continues, and the whole of it on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from foretune.core.errors import UserError
from foretune.planner.asking import devices_named
from tests.backtests.shared.rows import row
from tools.gpu_proofs import proving
from tools.gpu_proofs.__main__ import main
from tools.gpu_proofs.cases import Case, LeftOutModel, StandardModel, case_of, cases_for, plan_of
from tools.gpu_proofs.proving import CALIBRATION, OTHERS, WAITS, WORKFLOW, Suite, Work, expected, prove
from tools.gpu_proofs.results import GpuProofs, ProofResult, public_text, read_results, write_results

DDPM = {
    "model": "ddpm-cifar10",
    "method": {"kind": "full"},
    "data": {"kind": "shapes"},
    "train": {"steps": 1, "precision": "fp32"},
}
TESTS = "tests"
ONE_SUITE = (Suite(TESTS, (), 60.0),)
SUITES = [suite.name for suite in (WORKFLOW, WAITS, OTHERS)]
EMPTY = GpuProofs(environment={"device": "a GPU"}, commit="abc", date="2026-11-20")


def work(output: Path) -> Work:
    (card,) = devices_named("rtx-4090")
    case = case_of("ddpm", DDPM, plan_of(DDPM, card), num_steps=2, num_repeats=1)
    return Work(device="cpu", cases=(case, LeftOutModel("flux", "does not fit")), output=output, suites=ONE_SUITE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_without_a_gpu_it_says_so_and_begins_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results.json"
    assert main([*arguments, "--output", str(output)]) == 2
    assert "torch sees no CUDA or ROCm GPU here" in capsys.readouterr().err
    assert not output.exists()


def test_the_plan_decides_what_is_measured() -> None:
    (card,) = devices_named("rtx-4090")
    models = (StandardModel("flux.1-dev"), StandardModel("mochi-1", ({"num_frames": 19},), 6, instead_of="flux.1-dev"))
    found = list(cases_for(card, models))
    # 12 billion weights in bf16 do not fit into 24 GB; in 8 and 4 bits they do, so nothing stands in for FLUX.
    assert [one.name for one in found] == ["flux.1-dev: LoRA, int8", "flux.1-dev: LoRA, nf4"]
    for one in found:
        assert isinstance(one, Case)
        assert one.plan.verdict == "fits"
        assert one.plan.time is not None
        # Two repeats: start, 24 GB of weights, and steps.
        assert one.expected_s == pytest.approx(2 * (60 + 23.8e9 / 0.5e9 + 20 * one.plan.time.step_s), rel=0.01)


def test_what_fits_nowhere_is_left_out_with_the_plan_s_figures() -> None:
    (card,) = devices_named("6GiB")
    (found,) = cases_for(card, (StandardModel("hunyuanvideo", ({"num_frames": 9},)),))
    assert isinstance(found, LeftOutModel)
    assert "GiB usable" in found.reason


def test_a_run_continues_with_what_is_missing_or_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def tests(_: Suite) -> ProofResult:
        begun.append(TESTS)
        return ProofResult(name=TESTS, outcome="passed" if len(begun) > 3 else "failed", took_s=1.0)

    def calibration(_: Work) -> ProofResult:
        begun.append(CALIBRATION)
        return ProofResult(name=CALIBRATION, outcome="passed", took_s=1.0)

    def model(_: Work, case: Case | LeftOutModel) -> tuple[ProofResult, object]:
        begun.append(case.name)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return ProofResult(name=case.name, outcome="passed", took_s=1.0), row() if case.name == "ddpm" else None

    for name, fake in (("_tests", tests), ("_calibration", calibration), ("_case", model)):
        monkeypatch.setattr(proving, name, fake)
    output = tmp_path / "deep" / "results.json"
    with pytest.raises(KeyboardInterrupt):
        prove(work(output), EMPTY, lambda _: None)
    kept = read_results(output)
    assert [proof.name for proof in kept.proofs] == [TESTS, CALIBRATION]
    assert not kept.is_complete
    results = prove(work(output), kept, lambda _: None)
    assert begun == [TESTS, CALIBRATION, "ddpm", TESTS, "ddpm", "flux"]
    assert results == read_results(output)
    assert results.is_complete
    # The row is judged by what ships.
    assert results.score["memory"]["num_rows"] == 1


def test_an_error_in_a_model_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(f"no memory left in {Path.home()}/x\nsecond line")

    monkeypatch.setattr(proving, "bench", fails)
    case = next(case for case in work(tmp_path / "x").cases if isinstance(case, Case))
    proof, made = proving._case(work(tmp_path / "x"), case)
    assert (proof.outcome, made) == ("failed", None)
    assert proof.reason == "OutOfMemoryError: no memory left in ~/x"


def test_what_would_run_is_listed_with_its_time(tmp_path: Path) -> None:
    listed = dict(expected(work(tmp_path / "x")))
    assert list(listed) == [TESTS, CALIBRATION, "ddpm", "flux"]
    assert listed["flux"] == 0
    assert listed["ddpm"] is None or listed["ddpm"] > 60


def test_results_name_no_folder_of_this_machine(tmp_path: Path) -> None:
    personal = ProofResult(name="a", outcome="failed", reason=f"see {Path.cwd()}/x", took_s=1.0)
    with pytest.raises(UserError, match="a folder of this machine"):
        write_results(tmp_path / "x.json", EMPTY.with_proof(personal))
    assert not (tmp_path / "x.json").exists()
    assert public_text(f"see {Path.cwd()}/x") == "see ./x"
    assert public_text("token=abcdefghij0123456789") == "token=[redacted]"


def test_results_of_another_device_are_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "results.json"
    write_results(output, EMPTY)
    assert main(["--rehearse", "--output", str(output)]) == 2
    assert "is of another device" in capsys.readouterr().err
    assert read_results(output) == EMPTY


def rehearsed(output: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """The program with its own cache: what is measured of this machine here must not be in the plans of other tests.

    The simulated GPU stays where it was compiled.
    """
    from simaccel.build import cache_directory

    return subprocess.run(
        [sys.executable, "-m", "tools.gpu_proofs", "--rehearse", "--steps", "2", "--output", str(output)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "SIMACCEL_CACHE": str(cache_directory())},
        capture_output=True,
        text=True,
        check=False,
    )


def check_rehearsal(work: Path, outcome_of_tests: str) -> GpuProofs:
    """Tests in a pytest of their own, calibration, a model of random weights, one JSON; nothing is done twice."""
    output = work / "results.json"
    finished = rehearsed(output, work)
    results = read_results(output)
    outcomes = {proof.name: (proof.outcome, proof.reason) for proof in results.proofs}
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == {
        **dict.fromkeys(SUITES, outcome_of_tests),
        CALIBRATION: "passed",
        "ddpm-cifar10: full": "passed",
        "flux.1-dev": "skipped",
    }, outcomes
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert all(proof.figures["skipped"] + proof.figures["passed"] > 0 for proof in results.proofs[: len(SUITES)])
    (cells,) = results.rows
    assert json.loads(cells["measured"])["has_random_weights"]
    assert results.score["memory"]["num_rows"] == 1
    again = rehearsed(output, work)
    assert again.returncode == 0
    assert again.stdout.count("done before") == len(outcomes)
    assert read_results(output) == results
    return results


@pytest.mark.slow
@pytest.mark.takes_turns
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_whole_program_runs_on_a_cpu(tmp_path: Path) -> None:
    results = check_rehearsal(tmp_path, "skipped")
    assert results.score["speed"]["num_rows"] == 1  # by the calibration that was just made


@pytest.mark.slow
@pytest.mark.takes_turns
@pytest.mark.simulated
def test_the_whole_program_runs_on_a_simulated_gpu(tmp_path: Path) -> None:
    """The same program as on a real one, with the tests that need one."""
    check_rehearsal(tmp_path, "passed")
