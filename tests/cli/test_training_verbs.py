"""train, resume, sample, export, tiny and doctor as a person types them, each in a process of its own.

A process takes seconds to import what it needs, so those that belong together are a story, and what goes wrong is
tried in this process. The story's processes and one that is stopped are started from nothing: what they print includes
what libraries print while they are imported. Resuming and the doctor begin with that behind them.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from PIL import Image

from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory
from tests.cli.conftest import Answer, Foretune, environment
from tests.forked_python import ForkedPython
from tests.waiting import HANG_S

PROGRAM = [sys.executable, "-m", "foretune.cli.main"]
# Words of the libraries underneath, which have nothing to say to a user when all is well.
NOISE = (
    "[transformers]",
    "torchvision",
    "Loading pipeline",
    "Loading weights",
    "Writing model shards",
    "Traceback",
    "UserWarning",
    "FutureWarning",
    "DeprecationWarning",
    "it/s",
    "torch_dtype",
)
EXPERIMENT = {
    "method": {"kind": "lora", "rank": 4, "alpha": 8},
    "data": {"kind": "shapes", "num_samples": 20, "resolution": 32, "max_text_tokens": 16, "held_out": 0.2},
    "train": {"steps": 4, "batch_size": 2, "precision": "fp32"},
    "validate": {"prompts": ["a small red circle on blue"], "num_inference_steps": 2, "num_held_out": 2},
}


def run_program(folder: Path, *arguments: str, program: Sequence[str] = PROGRAM) -> Answer:
    """Types `foretune` with arguments and waits for its end."""
    ran = subprocess.run(
        [*program, *arguments],
        cwd=folder,
        env=environment(HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return Answer(ran.returncode, ran.stdout, ran.stderr)


def assert_no_noise(answer: Answer) -> None:
    text = answer.stdout + answer.stderr
    assert [word for word in NOISE if word in text] == [], text


@pytest.fixture
def experiment(tmp_path: Path, tiny_pipeline: Callable[..., Path]) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump({"model": str(tiny_pipeline("flux")), **EXPERIMENT}))
    return path


@dataclass(frozen=True)
class Story:
    """One folder, and what was answered to each command in it."""

    folder: Path
    answers: dict[str, Answer]

    @classmethod
    def started_in(cls, folder: Path) -> Self:
        """A tiny model is written, trained, exported and sampled from."""
        answers = {"tiny": run_program(folder, "tiny", "flux", "model", "--seed", "3")}
        (folder / "experiment.yaml").write_text(yaml.safe_dump({"model": "./model", **EXPERIMENT}))
        answers["train"] = run_program(folder, "train", "experiment.yaml", "train.steps=3", "optimizer.lr=1e-2")
        answers["export"] = run_program(folder, "export", "runs/experiment/latest", "--output", "out")
        sampled = ("--base", "model", "--adapter", "out", "--size", "32", "--steps", "2", "--text-tokens", "16")
        answers["sample"] = run_program(folder, "sample", *sampled, "--prompt", "a red star", "-o", "side.png")
        return cls(folder, answers)


def check_tiny(story: Story) -> None:
    answer = story.answers["tiny"]
    assert answer.returncode == 0, answer
    assert "Wrote a tiny flux pipeline to model. Use it as `model: model`." in answer.stdout
    assert (story.folder / "model" / "model_index.json").is_file()


def check_train(story: Story) -> None:
    answer = story.answers["train"]
    assert answer.returncode == 0, answer
    path = re.search(r"Finished 3 steps in [\d.]+ m?s: (runs/experiment/\S+)\n", answer.stdout)
    assert path is not None, answer.stdout
    assert f"Next: foretune export {path[1]}" in answer.stdout
    weights = r"Trained [\d.]+ k of [\d.]+ k weights \([\d.]+ %\); 40 of 40 trained tensors changed\n"
    assert re.search(weights, answer.stdout)
    assert "The base model is unchanged (checksum over all bits)" in answer.stdout
    assert re.search(r"Held-out loss [\d.]+ \(step 0\) to [\d.]+ \(step 3\): [+-][\d.]+%", answer.stdout)
    speed = r"Speed [\d.]+ (samples/s|s/sample), median step [\d.]+ m?s, process peak [\d.]+ [MG]iB\n"
    assert re.search(speed, answer.stdout)
    # Progress goes to the other stream, so that the summary can be kept.
    assert re.search(
        r"training 3/3  \S+ (samples/s|s/sample)( \([\d.]+ planned\))?  loss [\d.]+  done"
        r"(  peak [\d.]+ [MG]iB \([\d.]+ [MG]iB planned\))?\n",
        answer.stderr,
    )
    assert re.search(r"After step 3: held-out loss [\d.]+, 1 sample in ", answer.stderr)
    record = RunDirectory.open(story.folder / "runs" / "experiment" / "latest").read_record()
    assert record is not None
    assert record.outcome.status == "finished"


def check_export(story: Story) -> None:
    answer = story.answers["export"]
    assert answer.returncode == 0, answer
    assert "40 of 40 tensors arrived bit for bit; same-seed images differ by 0 at most" in answer.stdout
    assert 'pipe.load_lora_weights("out")' in answer.stdout


def check_sample(story: Story) -> None:
    answer = story.answers["sample"]
    assert answer.returncode == 0, answer
    assert "Wrote side.png: a row for each prompt; from left to right base, adapter out." in answer.stdout
    width_px, height_px = Image.open(story.folder / "side.png").size
    assert width_px > 2 * 256, "two pictures of 32 px, each enlarged to 256"
    assert height_px > 256


@pytest.mark.slow
@pytest.mark.every_run
def test_from_a_tiny_model_to_a_picture(tmp_path: Path) -> None:
    story = Story.started_in(tmp_path)
    check_tiny(story)
    check_train(story)
    check_export(story)
    check_sample(story)
    for answer in story.answers.values():
        assert_no_noise(answer)


STOPPED = """
import os, signal, sys
from foretune.cli.main import main

is_stopped = False

def stop_at_a_checkpoint(event, arguments):
    global is_stopped
    if event == "os.rename" and "step-" in str(arguments[1]) and not is_stopped:
        is_stopped = True
        os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(stop_at_a_checkpoint)
sys.argv = ["foretune", *sys.argv[1:]]
main()
"""
"""The program, which gets a scheduler's signal when it commits its first checkpoint: no watcher could be too late."""


@pytest.mark.slow
def test_stopped_and_resumed(experiment: Path, forked_python: ForkedPython) -> None:
    """The step is finished, the run saved, the exit code that of an interruption; then it goes on."""
    overrides = ("train.steps=6", "save.every=1", "validate.prompts=[]", "--runs", "stopped")
    program = [sys.executable, "-c", STOPPED]
    stopped = run_program(experiment.parent, "train", experiment.name, *overrides, program=program)
    run = experiment.parent / "stopped" / "experiment" / "latest"
    assert stopped.returncode == 130, stopped
    said = re.search(r"Interrupted after step (\d+): stopped by SIGTERM after saving\n", stopped.stderr)
    assert said is not None, stopped.stderr
    assert re.search(r"Continue with: foretune resume stopped/experiment/\S+\n", stopped.stderr)
    assert_no_noise(stopped)
    resumed = run_program(experiment.parent, "resume", str(run), program=[str(forked_python.foretune)])
    assert resumed.returncode == 0, resumed
    assert f"Resuming after step {said[1]}." in resumed.stderr
    assert "Finished 6 steps" in resumed.stdout
    assert_no_noise(resumed)
    steps = [event["step"] for event in read_events(run / "events.jsonl") if event["kind"] == "step"]
    assert steps == list(range(6))


def test_doctor(tmp_path: Path, forked_python: ForkedPython) -> None:
    program = [str(forked_python.foretune)]
    answer = run_program(tmp_path, "doctor", "--only", "training", "--only", "host", program=program)
    assert answer.returncode == 0, answer
    assert "Everything examined that a training needs works here." in answer.stdout
    assert re.search(r"^cpu +training step fp32 +works +[\d.]+ m?s +\S", answer.stdout, re.MULTILINE), answer.stdout
    assert re.search(r"^host +checkpoint on disk +works +[\d.]+ m?s +\S", answer.stdout, re.MULTILINE), answer.stdout
    assert_no_noise(answer)
    assert list(tmp_path.iterdir()) == []


# ---- what goes wrong, in this process: nothing here depends on how it starts


def test_a_run_that_fails_has_exit_code_one(experiment: Path, foretune: Foretune) -> None:
    answer = foretune("train", str(experiment), "optimizer.lr=1e30", "validate.prompts=[]", "method.kind=full")
    assert answer.returncode == 1
    assert re.search(r"Failed after step 0: the loss of step 2 is \S+\. Nothing after it was saved\.", answer.stderr)
    # It would come to the same number again, bit for bit.
    assert "foretune resume" not in answer.stderr
    assert "Finished" not in answer.stdout


def test_a_rehearsal_comes_before_the_run(foretune: Foretune, experiment: Path) -> None:
    answer = foretune("train", str(experiment), "--rehearse", "validate.prompts=[]", "--runs", "rehearsed")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    first = lines.index("Rehearsal: every phase of the run works.")
    assert any(line.startswith("Finished 4 steps in ") for line in lines[first:]), "then it trains"
    assert re.search(
        r"^  resumed from its checkpoint \([\d.]+ [KMG]iB\): the same losses$", answer.stdout, re.MULTILINE
    )
    assert re.search(r"^  step +[\d.]+ m?s   4 times$", answer.stdout, re.MULTILINE), answer.stdout


def test_a_rehearsal_that_fails_starts_no_run(foretune: Foretune, experiment: Path, tmp_path: Path) -> None:
    runs = tmp_path / "failed"
    answer = foretune(
        "train", str(experiment), "--rehearse", "optimizer.lr=1e30", "method.kind=full", "--runs", str(runs)
    )
    assert answer.returncode == 1
    assert "The rehearsal failed, and the run was not started." in answer.stderr
    assert [path.name[:11] for path in runs.iterdir()] == [".rehearsal-"]


def test_three_mistakes_are_three_lines(experiment: Path, foretune: Foretune) -> None:
    answer = foretune("train", str(experiment), "train.stepz=3", "method.rank=0", "train.precision=fp17")
    assert answer.returncode == 2
    assert "has 3 mistakes:" in answer.stderr
    assert not (experiment.parent / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("resume", "."), "is not a run directory"),
        (("export", "nowhere"), "is not a run directory"),
        (("sample", "--base", "./nowhere"), "The model folder ./nowhere does not exist"),
        (("sample", "--base", "flux.1-dev", "--precision", "fp8"), "'fp8' is not one of 'fp32', 'bf16', 'fp16'"),
        (("sample", "--base", "flux.1-dev", "--device", "tpu"), "'tpu' is not one of"),
        (("sample", "--base", "flux.1-dev", "--output", "picture"), "--output picture.png"),
        (("export", ".", "--precision", "int8"), "'int8' is not one of"),
        (("tiny", "fluxx", "here"), "Did you mean 'flux'?"),
        (("tiny", "flux", "here", "--variant", "devv"), "Did you mean 'dev'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_the_user_can_mend(arguments: tuple[str, ...], said: str, foretune: Foretune) -> None:
    answer = foretune(*arguments)
    assert answer.returncode == 2
    assert said in " ".join(answer.stderr.split())
    assert answer.stdout == ""


def test_doctor_in_json(foretune: Foretune) -> None:
    answer = foretune("doctor", "--json", "--only", "attention")
    assert answer.returncode == 0
    content: Any = yaml.safe_load(answer.stdout)
    assert content["ready"] is True
    assert content["environment"]["packages"]["torch"]
    assert set(content["findings"][0]) == {
        *("device", "group", "operation", "works", "needed", "seconds", "detail", "remedy")
    }
    assert {finding["group"] for finding in content["findings"]} == {"attention"}


def test_doctor_knows_its_groups(foretune: Foretune) -> None:
    answer = foretune("doctor", "--only", "atention")
    assert answer.returncode == 2
    assert "There is no group of checks named 'atention'. Did you mean 'attention'?" in answer.stderr


def test_doctor_says_what_fails(foretune: Foretune, monkeypatch: pytest.MonkeyPatch) -> None:
    from foretune.checkup import examining
    from foretune.checkup.finding import Check

    def fail(device: object) -> str:
        raise RuntimeError("no kernel")

    checks = (Check("attention", "attention", fail, needed=True), Check("attention", "bf16", fail))
    monkeypatch.setattr(examining, "DEVICE_CHECKS", checks)
    answer = foretune("doctor", "--only", "attention")
    assert answer.returncode == 1
    assert "Needed for training and failing: attention on cpu" in answer.stderr
    assert "not available" in answer.stdout
    assert "Everything" not in answer.stdout


def test_an_export_that_does_not_hold_is_not_called_one(
    experiment: Path, foretune: Foretune, monkeypatch: pytest.MonkeyPatch
) -> None:
    from foretune.training import exporting

    assert foretune("train", str(experiment), "train.steps=1", "validate.prompts=[]").returncode == 0
    proof = exporting.ExportProof(num_tensors=40, num_consumed=39, max_pixel_difference=0.25)
    monkeypatch.setattr(exporting, "_prove", lambda *_: proof)
    answer = foretune("export", "runs/experiment/latest")
    assert answer.returncode == 1
    assert "39 of 40 tensors arrived bit for bit; same-seed images differ by 0.25 at most" in answer.stderr
    assert "Nothing was written" in answer.stderr
    assert "To use it" not in answer.stdout


def test_interrupted_before_the_first_step(
    experiment: Path, foretune: Foretune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while preparing: no traceback, and the exit code of an interruption."""
    from foretune.training import train as train_module

    def prepare(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(train_module, "prepare", prepare)
    answer = foretune("train", str(experiment))
    assert answer.returncode == 130
    assert "Traceback" not in answer.stderr
