"""The base and what was made of it in one picture, one model in memory at a time."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from foretune.choices.adapter import ADAPTER_FILE
from foretune.core.errors import Refused, UserError
from foretune.core.observer import Observer
from foretune.models.adapters import save_adapter
from foretune.models.trainable import TrainableFamily
from foretune.quality.side_by_side import SideBySideRequest, labelled_sheet, side_by_side
from foretune.step.methods.adapter import AppliedAdapter
from foretune.training.export_files import PipelineFiles
from foretune.training.sampling_setup import SamplingChoice
from foretune.training.trained_run import TrainedRun, load_trained
from tests.training.short_runs import short_run

TinyPipeline = Callable[..., Path]


def comparison(model: Path, /, **changes: Any) -> SideBySideRequest:
    defaults: dict[str, Any] = {
        "base": str(model),
        "runs": (),
        "adapters": (),
        "full": (),
        "prompts": ("a small red circle on blue", "a large green star on white"),
        "seed": 0,
        "num_inference_steps": 1,
        "size_px": 32,
        "guidance_scale": None,
        "num_text_tokens": 16,
        "setup": SamplingChoice(device="cpu", precision="fp32"),
    }
    return SideBySideRequest(**{**defaults, **changes})


class Progress(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []

    def preparing(self, what: str, done: int, total: int) -> None:
        self.heard.append((what, done, total))


def exports(base: Path, work: Path) -> tuple[Path, Path]:
    """An adapter and a full model that differ from the base."""
    sections: dict[str, Any] = {"optimizer": {"lr": 5e-2}, "validate": {"num_held_out": 0}}
    adapted = load_trained(short_run(base, work, "lora", **sections).run)
    assert isinstance(adapted.method, AppliedAdapter)
    save_adapter(adapted.family, work / "adapter", adapted.method.weights(), adapted.method.peft_config())
    whole = TrainedRun.open(short_run(base, work, "full", **sections).run)
    PipelineFiles(whole, torch.float32, merge=False).write(work / "full", follow_links=False)
    return work / "adapter", work / "full"


def test_a_row_for_each_prompt_and_a_column_for_each_model(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny_pipeline("flux")
    adapter, full = exports(base, tmp_path)
    alive: list[weakref.ref[Any]] = []
    load_denoiser, load_pipeline = TrainableFamily.load_denoiser, TrainableFamily.load_pipeline

    def only_one() -> None:
        gc.collect()
        assert [reference for reference in alive if reference() is not None] == [], "two models at once"

    def watched(self: TrainableFamily, *args: Any, **kwargs: Any) -> Any:
        only_one()
        denoiser = load_denoiser(self, *args, **kwargs)
        alive.append(weakref.ref(denoiser))
        return denoiser

    def watched_encoders(self: TrainableFamily, *args: Any, **parts: Any) -> Any:
        pipeline = load_pipeline(self, *args, **parts)
        if pipeline.text_encoder is not None:
            only_one()
            alive.append(weakref.ref(pipeline.text_encoder))
        return pipeline

    monkeypatch.setattr(TrainableFamily, "load_denoiser", watched)
    monkeypatch.setattr(TrainableFamily, "load_pipeline", watched_encoders)
    progress = Progress()
    output = tmp_path / "deep" / "sheet.png"
    request = comparison(base, adapters=(adapter,), full=(full,))
    columns = side_by_side(request, output, progress)
    assert columns == ("base", f"adapter {adapter}", f"full {full}")
    assert progress.heard == [(f"sampling {name}", done, 2) for name in columns for done in range(3)]
    assert len(alive) == 5, "three denoisers, and the encoders of the base and of the full model"
    sheet = np.asarray(Image.open(output))
    # 32 px become 256, three of them and the gaps between and around.
    assert sheet.shape[1] == 3 * 256 + 4 * 12
    cells = [sheet[-12 - 12 - 256 : -12 - 12, 12 + number * 268 : 12 + number * 268 + 256] for number in range(3)]
    for cell in cells:
        assert np.array_equal(cell, cell[::8, ::8].repeat(8, axis=0).repeat(8, axis=1)), "a square for each pixel"
    assert not np.array_equal(cells[0], cells[1])
    assert not np.array_equal(cells[0], cells[2])


def test_a_sheet_names_its_columns_and_prompts() -> None:
    """There is ink above the images and between the rows, and none of it beyond the sheet, however long a name is."""
    image = Image.new("RGB", (32, 32), "red")
    names = ("base", "adapter " + "a-very-long-folder-name/" * 12)
    sheet = np.asarray(labelled_sheet({name: [image, image] for name in names}, ("a red field", "word " * 120)))
    is_red = np.all(np.equal(sheet, (255, 0, 0)), axis=2)
    assert is_red.sum() == 4 * 256 * 256
    is_ink = np.all(np.less(sheet, 128), axis=2)
    first_image_px = int(np.argmax(is_red.any(axis=1)))
    assert is_ink[:first_image_px, :280].any(), "the first name"
    assert is_ink[:first_image_px, 280:].any(), "the second name"
    assert is_ink[first_image_px + 256 :].any(), "the second prompt"
    assert not is_ink[:, -12:].any(), "text stays inside"


def test_large_images_keep_their_size() -> None:
    sheet = labelled_sheet({"base": [Image.new("RGB", (512, 512), "red")]}, ("one",))
    assert sheet.width == 512 + 2 * 12


def test_sizes_are_the_models_own_unless_asked(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    side_by_side(comparison(tiny_pipeline("ddpm"), size_px=None, prompts=("one",)), tmp_path / "a.png", Observer())
    assert Image.open(tmp_path / "a.png").width == 256 + 2 * 12, "32 px, eight times"


@pytest.mark.parametrize("name", ["picture", "picture.txt"])
def test_no_picture_is_refused_before_anything_is_sampled(name: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"has no suffix of an image format.*--output .*picture\.png"):
        side_by_side(comparison(tmp_path / "no such model"), tmp_path / name, Observer())


def test_a_full_model_that_is_not_there(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    request = comparison(tiny_pipeline("ddpm"), full=(tmp_path / "nosuch",))
    with pytest.raises(UserError, match=r"There is no folder .*nosuch\. --full takes"):
        side_by_side(request, tmp_path / "a.png", Observer())


def test_an_adapter_that_is_not_there(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    request = comparison(tiny_pipeline("ddpm"), adapters=(tmp_path,))
    with pytest.raises(UserError, match=f"holds no {ADAPTER_FILE}"):
        side_by_side(request, tmp_path / "a.png", Observer())


def test_an_adapter_of_another_model_is_refused_before_anything_is_sampled(
    tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    """The loader of SD3 would take the layers that have the same names as FLUX has, and pass over the others."""
    sections: dict[str, Any] = {"validate": {"num_held_out": 0}}
    adapted = load_trained(short_run(tiny_pipeline("flux"), tmp_path, "lora", **sections).run)
    assert isinstance(adapted.method, AppliedAdapter)
    save_adapter(adapted.family, tmp_path / "adapter", adapted.method.weights(), adapted.method.peft_config())
    for base, said in (
        (tiny_pipeline("sd3"), r"24 of its 40 tensors fit none of its layers, such as single_transformer_blocks\.0\."),
        (Path("foretune-shapes"), "40 of its 40 tensors fit none of its layers"),
        (tiny_pipeline("ddpm"), "pipelines of ddpm load no such file"),
    ):
        progress = Progress()
        with pytest.raises(UserError, match=said):
            side_by_side(comparison(base, adapters=(tmp_path / "adapter",)), tmp_path / "sheet.png", progress)
        assert progress.heard == []


def cells_of(picture: Path, num_columns: int) -> list[np.ndarray[Any, Any]]:
    """The first row of a picture of small images."""
    pixels = np.asarray(Image.open(picture))
    top = pixels.shape[0] - 2 * (12 + 256) - 12 - 22
    return [pixels[top:, 12 + number * 268 : 12 + number * 268 + 256] for number in range(num_columns)]


def test_a_run_is_put_beside_its_base(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """At its own size, and merged or not it draws the same."""
    sections: dict[str, Any] = {"optimizer": {"lr": 5e-2}, "validate": {"num_held_out": 0}}
    run = short_run(tiny_pipeline("flux"), tmp_path, "lora", **sections).run.path
    shown = {}
    for merge in (False, True):
        setup = SamplingChoice(device="cpu", precision="fp32", merge=merge, batch_size=2)
        request = comparison(tmp_path, base=None, runs=(run,), size_px=None, setup=setup)
        output = tmp_path / f"{merge}.png"
        assert side_by_side(request, output, Observer()) == ("base", f"run {run}")
        shown[merge] = cells_of(output, 2)
    base, trained = shown[False]
    assert not np.array_equal(base, trained)
    assert np.array_equal(shown[True][0], base)
    quantised = SamplingChoice(device="cpu", precision="fp32", merge=True, quantize="int8")
    request = comparison(tmp_path, base=None, runs=(run,), size_px=None, setup=quantised)
    assert side_by_side(request, tmp_path / "int8.png", Observer()) == ("base", f"run {run}")
    difference = np.abs(shown[True][1].astype(int) - trained.astype(int))
    assert difference.max() <= 2, "rounding"


def test_a_file_is_not_merged_into_a_base_that_the_run_quantises(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    sections: dict[str, Any] = {"validate": {"num_held_out": 0}, "quantize": {"denoiser": "int8"}}
    done = short_run(tiny_pipeline("flux"), tmp_path, "lora", **sections)
    adapted = load_trained(done.run)
    assert isinstance(adapted.method, AppliedAdapter)
    save_adapter(adapted.family, tmp_path / "adapter", adapted.method.weights(), adapted.method.peft_config())
    setup = SamplingChoice(device="cpu", precision="fp32", merge=True)
    request = comparison(tmp_path, base=None, runs=(done.run.path,), adapters=(tmp_path / "adapter",), setup=setup)
    progress = Progress()
    with pytest.raises(Refused, match="cannot be merged into quantised weights"):
        side_by_side(request, tmp_path / "a.png", progress)
    assert progress.heard == [], "before anything is sampled"


def test_what_cannot_be_sampled_together_is_refused(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    base = tiny_pipeline("ddpm")
    with pytest.raises(UserError, match=r"There is nothing to sample\. Name a run, or a model"):
        side_by_side(comparison(base, base=None), tmp_path / "a.png", Observer())
    merged = comparison(base, setup=SamplingChoice(device="cpu", merge=True))
    with pytest.raises(Refused, match="There is no adapter to merge: a base has none"):
        side_by_side(merged, tmp_path / "a.png", Observer())
    quantised = SamplingChoice(device="cpu", merge=True, quantize="int8")
    with pytest.raises(Refused, match="cannot be merged into quantised weights"):
        side_by_side(comparison(base, adapters=(tmp_path,), setup=quantised), tmp_path / "a.png", Observer())
