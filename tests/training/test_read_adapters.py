"""Runs that read adapters: one to go on from, and one that is only there while they train."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from foretune.choices.adapter import ADAPTER_FILE
from foretune.core.errors import Refused, UserError
from foretune.core.observer import Observer
from foretune.data.buckets import Bucket
from foretune.models.adapters import load_adapter
from foretune.models.locating import open_family
from foretune.training.exporting import export
from foretune.training.sampling import SampleRequest, sample, to_image
from foretune.training.train import resume
from tests.step.methods.kinds import KINDS, written
from tests.training.short_runs import PROMPT, Recording, events_of, losses_of, short_prepared, short_run

TinyPipeline = Callable[..., Path]


def question(folder: Path, work: Path, **method: Any) -> str:
    return str(short_prepared(folder, work, {**KINDS["lora"], **method}).effective["question_hash"])


def test_their_content_is_part_of_the_question_and_their_place_is_not(
    tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline("flux")
    for place, seed in (("here", 3), ("there", 3), ("other", 4)):
        written(folder, tmp_path / place, KINDS["lora"], seed)
    for key in ("start_from", "training_adapter"):
        here, there, other = (
            question(folder, tmp_path, **{key: str(tmp_path / p)}) for p in ("here", "there", "other")
        )
        assert here == there != other
        assert question(folder, tmp_path) not in (here, other)
    both = {"start_from": str(tmp_path / "here"), "training_adapter": str(tmp_path / "other")}
    crossed = {"start_from": str(tmp_path / "other"), "training_adapter": str(tmp_path / "here")}
    assert question(folder, tmp_path, **both) != question(folder, tmp_path, **crossed)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            {"start_from": "nowhere"},
            r"method\.start_from: .*nowhere is neither a repository of the Hub nor",
        ),
        ({"start_from": "here", "rank": 3}, r"method\.start_from: .*rank 4; the experiment asks for kind lora, rank 3"),
        ({"training_adapter": "other"}, r"method\.training_adapter: .*other is for another model"),
        ({"targets": ["to_z"]}, r"method\.targets: no layer of this flux model"),
    ],
)
def test_what_cannot_be_attached_is_said_before_anything_is_loaded(
    method: dict[str, Any], said: str, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path / "here", KINDS["lora"])
    written(tiny_pipeline("sd3"), tmp_path / "other", KINDS["lora"])
    monkeypatch.chdir(tmp_path)
    observer = Recording()
    with pytest.raises(Refused, match=said):
        short_run(folder, tmp_path, {**KINDS["lora"], **method}, observer)
    assert observer.of("preparing") == observer.of("message") == []


@pytest.mark.usefixtures("proof_in_this_process")
def test_a_run_goes_on_from_the_export_of_another(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """Without a learning rate to speak of it exports what it began with."""
    folder = tiny_pipeline("flux")
    first = short_run(folder, tmp_path, KINDS["dora"], optimizer={"lr": 2e-2}, validate={"num_held_out": 0})
    export(first.run, tmp_path / "first")
    second = short_run(
        folder,
        tmp_path,
        {**KINDS["dora"], "start_from": str(tmp_path / "first")},
        optimizer={"lr": 1e-12},
        validate={"num_held_out": 0},
    )
    (tmp_path / "first").rename(tmp_path / "moved")
    export(second.run, tmp_path / "second")
    before, after = (load_file(tmp_path / name / ADAPTER_FILE) for name in ("moved", "second"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-9)


@pytest.mark.usefixtures("proof_in_this_process")
def test_a_training_adapter_is_in_the_loss_and_neither_in_samples_nor_in_the_export(
    tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path / "helper", {"kind": "lora", "rank": 3, "alpha": 30})
    sections: dict[str, Any] = {
        "optimizer": {"lr": 2e-2},
        "validate": {"num_held_out": 2, "prompts": [PROMPT], "num_inference_steps": 2},
    }
    method = {**KINDS["lora"], "training_adapter": str(tmp_path / "helper")}
    observer = Recording()
    helped = short_run(folder, tmp_path, method, observer, **sections)
    alone = short_run(folder, tmp_path, KINDS["lora"], **sections)
    assert helped.base_unchanged
    assert helped.num_changed_tensors == helped.num_trained_tensors == alone.num_trained_tensors
    assert abs(losses_of(helped.run)[0] - losses_of(alone.run)[0]) > 1e-3
    held_out = [events_of(run.run, "validated")[0]["held_out_loss"] for run in (helped, alone)]
    assert abs(held_out[0] - held_out[1]) > 1e-3
    assert any("training_adapter is not in the forecast" in text for text in observer.of("warning"))

    assert export(helped.run, tmp_path / "export").proof.holds
    assert not any("training_adapter" in name for name in load_file(tmp_path / "export" / ADAPTER_FILE))
    family = open_family(folder)
    pipeline = family.load_pipeline(folder, torch.float32)
    load_adapter(family, pipeline, tmp_path / "export")
    request = SampleRequest(prompts=(PROMPT,), seed=0, num_inference_steps=2, size=Bucket(32, 32), num_text_tokens=16)
    expected = np.asarray(to_image(sample(family, pipeline, request)[0]), dtype=np.int16)
    (seen,) = helped.run.samples.glob("step-000000003-*.png")
    assert np.abs(np.asarray(Image.open(seen), dtype=np.int16) - expected).max() <= 1


def test_resuming_with_a_training_adapter(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path / "helper", {"kind": "lora", "rank": 3, "alpha": 30})
    method = {**KINDS["lokr"], "training_adapter": str(tmp_path / "helper")}
    sections: dict[str, Any] = {"validate": {"num_held_out": 0}, "save": {"every": 1}}
    whole = short_run(folder, tmp_path, method, **sections)

    class Stop(Exception):
        pass

    def stop(done: int) -> None:
        if done == 2:
            raise Stop

    broken = short_run(folder, tmp_path, method, Recording(stop), **sections)
    assert broken.record.outcome.status == "failed"
    original = (tmp_path / "helper" / ADAPTER_FILE).read_bytes()
    written(folder, tmp_path / "helper", {"kind": "lora", "rank": 3, "alpha": 30}, seed=9)
    with pytest.raises(UserError, match=r"The adapter that is read of .* changed since it started"):
        resume(broken.run, Observer())
    (tmp_path / "helper" / ADAPTER_FILE).write_bytes(original)
    resumed = resume(broken.run, Observer())
    last = "step-000000003/weights.safetensors"
    ended, expected = (load_file(run.run.checkpoints / last) for run in (resumed, whole))
    assert ended.keys() == expected.keys()
    assert all(torch.equal(ended[name], expected[name]) for name in ended)
