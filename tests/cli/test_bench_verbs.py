"""What `bench` and `study` print, and what they refuse."""

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from foretune.api.bench import bench_inference, compare_inference, variants_named
from foretune.choices.inference import VariantChoices
from foretune.choices.study_series import SeriesInference
from foretune.cli.main import app
from foretune.core.errors import UnknownName, UserError
from foretune.measure.bench import Bench, BenchChoices
from foretune.measure.bench_inference import InferenceBench, InferenceChoices
from foretune.measure.bench_summary import summary_of
from foretune.measure.inference_variants import variant_of
from foretune.measure.step_flops import StepFlops
from foretune.reports.terminal.bench import print_bench, print_inference
from foretune.stats.break_even import break_even
from foretune.stats.intervals import typical
from tests.backtests.shared.rows import row
from tests.measure.test_bench import repeat_of


def run(*arguments: str) -> None:
    app(arguments, standalone_mode=False)


def test_every_number_comes_with_what_it_was_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    repeats = [repeat_of(9.0, *[0.5] * 20, peak_host_bytes=2**30) for _ in range(3)]
    plain, started = [[0.2] * 20] * 3, [[10.1, *[0.1] * 19]] * 3
    result = Bench(
        path=Path("benches/x/1"),
        name="x",
        choices=BenchChoices(num_steps=21, num_repeats=3, is_synthetic=True),
        series=summary_of(repeats, StepFlops(model=10.0, hardware=15.0)),
        uncompiled=None,
        break_even=break_even(plain, started),
        warnings=("This machine was busy",),
        num_devices=2,
    )
    print_bench(result)
    text = capsys.readouterr().out
    for part in (
        "21 steps, 3 repeats in fresh processes, synthetic data",
        "2 devices: speeds are those of all, utilisation and memory those of the first.",
        "3 runs, 60 values",
        "3 of 63 values were left out: warm-up",
        "20 % of 100 FLOP/s (a data sheet)",
        "30 % with recomputation",
        "host process: measured 1.00 GiB",
        "Energy: no sensor reported",
        "Compile: 10 s at the start",
        "Break-even: after 100 steps",
        "Warning: This machine was busy",
    ):
        assert part in text, part


def inference(*did_not_fit: int) -> InferenceBench:
    return InferenceBench(
        path=Path("benches/m/1"),
        model="m",
        choices=InferenceChoices(batch_size=256, preset="classical"),
        batch_size=64,
        did_not_fit=did_not_fit,
        size_px=32,
        device="cpu",
        pass_s=typical([[0.5] * 20] * 3),
        mean_pass_s=typical([[0.5] * 20] * 3, statistic="mean"),
        image_batch_s=typical([[2.0] * 3] * 3),
        peak_device_bytes=None,
        peak_reserved_bytes=None,
        peak_host_bytes=2**30,
        denoising=(),
        imaging=(),
    )


def test_a_batch_that_did_not_fit_is_labelled(capsys: pytest.CaptureFixture[str]) -> None:
    print_inference(inference(256, 128))
    text = capsys.readouterr().out
    assert "NOT the requested batch: 256, 128 did not fit" in text
    assert "denoising steps/s, batch 64" in text
    assert "Images: 6 of 9 values were left out: warm-up: the first 2 steps of each run." in text
    assert "Warning: Images: 3 of 3 runs are too short; the first: 3 values are too few" in text
    print_inference(inference())
    assert "NOT" not in capsys.readouterr().out


def test_speeds_of_several_devices_are_those_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    choices = InferenceChoices(batch_size=64, devices=2, compile="regional")
    denoising = ({"times_s": [10.5, *[0.5] * 19]},) * 3
    print_inference(dataclasses.replace(inference(), choices=choices, denoising=denoising))
    text = capsys.readouterr().out
    assert "Inference of m on 2 devices (cpu)" in text
    assert "2 devices: speeds are those of all, batches and memory those of one." in text
    lines = {line.split("  ")[0]: line.split("  ")[1:] for line in text.splitlines()}
    assert "4" in [cell.strip() for cell in lines["denoising steps/s, batch 64"]]
    assert "256" in [cell.strip() for cell in lines["image-steps/s"]]
    assert "Compile: 10 s of warm-up. For the break-even: foretune bench m --inference --variant plain:" in text


def test_the_command_for_the_break_even_has_the_settings_of_the_bench(capsys: pytest.CaptureFixture[str]) -> None:
    choices = InferenceChoices(
        batch_size=256,
        precision="bf16",
        quantize="int8",
        merge=True,
        compile="regional",
        size_px="416x240",
        num_frames=9,
    )
    denoising = ({"times_s": [10.5, *[0.5] * 19]},) * 3
    bench = dataclasses.replace(inference(256, 128), choices=choices, denoising=denoising, adapter="me/a (0123456789)")
    print_inference(bench)
    held = "precision=bf16,quantize=int8,merge=true,adapter=me/a,batch=64"
    assert (
        f"foretune bench m --inference --variant plain:{held} --variant compiled:{held},compile=regional "
        "--size 416x240 --frames 9\n"
    ) in capsys.readouterr().out
    for name, settings in variants_named([f"plain:{held}"]).items():
        assert variant_of(name, {**settings, "quantize": "none"}).batch_size == 64


def test_what_makes_no_sense_is_refused_with_what_to_type() -> None:
    with pytest.raises(UserError, match="--inference takes a model"):
        run("bench", "m", "train.steps=3", "--inference")
    with pytest.raises(UnknownName, match="classical"):
        run("bench", "m", "--inference", "--preset", "clasical")
    with pytest.raises(UnknownName, match="bf16"):
        run("bench", "m", "--inference", "--precision", "bf17")
    with pytest.raises(UserError, match="--batch is what a preset decides"):
        run("bench", "m", "--inference", "--preset", "classical", "--batch", "4")
    with pytest.raises(UnknownName, match="batch-size"):
        run("study", "batchsize", "--no-plot")
    with pytest.raises(UserError, match="foretune profile EXPERIMENT"):
        run("study", "operators", "--no-plot")


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        (("--batch", "4"), r"--batch is for inference.*train\.batch_size=4"),
        (("--precision", "fp32"), r"--precision is for inference.*train\.precision=bf16"),
        (("--devices", "2"), r"--devices is for inference.*parallel\.devices=2"),
        (("--inference", "--variant", "a:", "--devices", "2"), "--devices is a key of a variant.*devices=2"),
        (
            ("--inference", "--variant", "a:", "--image-batch", "2"),
            "--image-batch does not go with --variant: .*one at",
        ),
        (
            ("--inference", "--variant", "a:", "--preset", "classical"),
            "--preset decides .*NAME:batch=256,precision=fp32",
        ),
        (("--inference", "--yes"), "--yes goes with --share, which is for training"),
        (("--images", "2"), "--images is for inference. Add --inference"),
        (("--inference", "--synthetic"), "--synthetic is for training"),
        (("--inference", "--no-break-even"), "--break-even is for training"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(typed: tuple[str, ...], fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        run("bench", "x.yaml", *typed)


@pytest.mark.parametrize(
    ("typed", "function", "options"),
    [
        ((), "bench", {}),
        (("--inference",), "bench_inference", {}),
        (("--inference", "--variant", "a:"), "compare_inference", {}),
        (
            ("--inference", "--variant", "a:", "--repeat", "5", "--images", "0"),
            "compare_inference",
            {"repeat": 5, "images": 0},
        ),
    ],
)
def test_defaults_are_those_of_the_function(
    typed: tuple[str, ...], function: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def noted(*_: Any, **named: Any) -> Any:
        given.update(named)
        raise UserError("noted")

    monkeypatch.setattr(f"foretune.api.bench.{function}", noted)
    with pytest.raises(UserError, match="noted"):
        run("bench", "m", *typed)
    own = ("steps", "repeat", "images", "inference_steps")
    assert {name: given[name] for name in own if name in given} == options


def test_a_comparison_of_variants_has_the_same_defaults_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    choices = VariantChoices()
    parameters = inspect.signature(compare_inference).parameters
    part = SeriesInference.model_validate({"variants": {"plain": {}}})
    for name in ("steps", "repeat", "images", "inference_steps"):
        assert parameters[name].default == getattr(part, name) == getattr(choices, name), name
    run("bench", "--help")
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, usual in (("repeat", 5), ("images", 3), ("inference_steps", 28)):
        assert inspect.signature(bench_inference).parameters[name].default == usual
        assert f"[default: {usual}; --variant: {getattr(choices, name)}]" in words, name


def test_one_is_not_spoken_of_as_many(capsys: pytest.CaptureFixture[str]) -> None:
    result = Bench(
        path=Path("b"),
        name="x",
        choices=BenchChoices(num_steps=1, num_repeats=1),
        series=summary_of([repeat_of(0.5)], None),
        uncompiled=None,
        break_even=None,
        warnings=(),
    )
    print_bench(result)
    text = capsys.readouterr().out
    assert "Bench of x: 1 step, 1 repeat in a fresh process, the experiment's own data" in text
    assert "1 run, 1 value\n" in text


def test_a_rate_without_an_upper_end_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_inference(dataclasses.replace(inference(), mean_pass_s=typical([[0.1] * 20, [0.9] * 20], statistic="mean")))
    assert "0.1791 or more" in capsys.readouterr().out


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file to share to; nothing is measured, and the row is a given one."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("foretune.api.bench.bench", lambda *_, **__: "measured")
    monkeypatch.setattr("foretune.reports.terminal.bench.print_bench", lambda _: None)
    monkeypatch.setattr("foretune.api.sharing.shared_row", lambda *_, **__: row())
    return tmp_path / "rows.csv"


@pytest.mark.parametrize(("answer", "num_lines"), [(True, 2), (False, 0)])
def test_a_row_is_shown_and_written_if_the_user_says_so(
    shared: Path, answer: bool, num_lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        # What will be written was printed before.
        assert row().row_id in capsys.readouterr().out
        questions.append(text)
        return answer

    monkeypatch.setattr("typer.confirm", confirm)
    run("bench", "x.yaml", "--share", str(shared))
    assert questions == [f"Add it to {shared}?"]
    assert len(shared.read_text().splitlines() if shared.exists() else []) == num_lines
    assert ("Added to" in capsys.readouterr().out) == answer


def test_yes_writes_without_asking(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("bench", "x.yaml", "--share", str(shared), "--yes")
    run("bench", "x.yaml", "--share", str(shared), "--yes")
    assert len(shared.read_text().splitlines()) == 3
    assert "Add it to" not in capsys.readouterr().out


def test_what_could_not_be_shared_is_not_measured(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measures(*_: object, **__: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr("foretune.api.bench.bench", measures)
    other = tmp_path / "notes.csv"
    other.write_text("a,b\n")
    with pytest.raises(UserError, match=r"notes\.csv is not a file of shared measurements"):
        run("bench", "x.yaml", "--share", str(other))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(UserError, match="Add --yes"):
        run("bench", "x.yaml", "--share", str(shared))
