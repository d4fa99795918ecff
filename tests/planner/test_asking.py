"""From what is typed to plans: names, files, folders, and what is said about mistakes."""

import json
from functools import partial
from pathlib import Path

import pytest

from foretune import catalog
from foretune.core.errors import ExperimentErrors, MissingExtra, UnknownName, UserError
from foretune.core.values import Plan
from foretune.planner.asking import PlanRequest, asked_of, devices_named, plan_everything
from foretune.planner.overheads import usable_bytes
from foretune.planner.traces import NotTraced
from tests.planner import asked_plans

INSTALL = r"pip install 'foretune\[train\]'"
# What could be done about an answer is asked in `test_advice.py`.
plan = partial(asked_plans.plan, advice="none")
plans = partial(asked_plans.plans, advice="none")


def test_devices_by_name_in_the_order_they_were_typed() -> None:
    assert [d.name for d in devices_named("rtx-4090, l4,h100-sxm,l4")] == ["rtx-4090", "l4", "h100-sxm"]


def test_all_devices_from_the_smallest_on() -> None:
    found = devices_named(" all ")
    assert {device.name for device in found} == set(catalog.devices())
    sizes = [usable_bytes(device) for device in found]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("text", ["", " , ", ","])
def test_no_device_at_all(text: str) -> None:
    with pytest.raises(UserError, match=r"--on rtx-4090,h100-sxm, or --on all"):
        devices_named(text)


def test_a_mistyped_device() -> None:
    with pytest.raises(UserError, match=r"rtx-4090.*--on 16GiB.*foretune list devices"):
        devices_named("l4,rtx-4091")


def test_a_model_is_planned_as_an_adapter_at_its_own_size() -> None:
    found = plan("sd3-medium", on="h100-sxm")
    assert found.model == "sd3-medium"
    assert (found.sizes["height_px"], found.sizes["width_px"]) == (1024, 1024)
    assert any("sd3-medium.lora.bf16.checkpointed" in trace for trace in found.traces)


def test_sizes_may_be_typed() -> None:
    found = plan("sd3-medium", on="h100-sxm", height_px=512, width_px=768)
    assert (found.sizes["height_px"], found.sizes["width_px"]) == (512, 768)
    by_key = plan("sd3-medium", "data.resolution=512", on="h100-sxm")
    assert (by_key.sizes["height_px"], by_key.sizes["width_px"]) == (512, 512)
    video = plan("cogvideox-2b", on="h100-sxm", num_frames=9)
    assert video.sizes["num_frames"] == 9
    own = plan("cogvideox-2b", on="h100-sxm")
    assert own.sizes["num_frames"] == 49
    assert step_bytes(video) < step_bytes(own)


def step_bytes(found: Plan) -> int:
    return next(phase.device_bytes for phase in found.phases if phase.phase == "training step")


EXPERIMENT = """
model: sd3-medium
method: {kind: lora, rank: 8}
data: {kind: shapes, resolution: 512}
train: {steps: 10, batch_size: 2, precision: bf16}
levers: {gradient_checkpointing: 1.0}
"""


def test_a_file_is_planned_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    found = plan(str(path), on="l4")
    assert (found.sizes["batch_size"], found.sizes["height_px"]) == (2, 512)
    more = plan(str(path), "train.batch_size=4", on="l4")
    assert more.sizes["batch_size"] == 4
    assert more.experiment != found.experiment


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        plan(str(tmp_path / "nowhere.yaml"))


def test_a_hub_id_of_the_catalogue_is_that_model() -> None:
    row = catalog.denoiser("sd3-medium")
    assert row.hub_repo is not None
    by_id, by_name = plan(row.hub_repo, on="l4"), plan("sd3-medium", on="l4")
    assert by_id.model == "sd3-medium"
    assert by_id.allocated_bytes == by_name.allocated_bytes


def test_a_hub_id_that_is_not_in_the_catalogue_is_not_downloaded() -> None:
    with pytest.raises(UserError, match="planning downloads nothing"):
        plan("somebody/their-model")


def folder_with(folder: Path, name: str, pipeline: str, **changes: object) -> Path:
    """A checkpoint's folder without weights: its configuration says what it is."""
    (folder / "transformer").mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline}), encoding="utf-8")
    config = {**dict(catalog.denoiser(name).config), "_class_name": "X", "_diffusers_version": "0.0", **changes}
    (folder / "transformer" / "config.json").write_text(json.dumps(config, default=list), encoding="utf-8")
    return folder


def test_a_folder_with_the_configuration_of_a_catalogue_model_is_that_model(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "mine", "sd3-medium", "StableDiffusion3Pipeline")
    found = plan(str(folder), on="l4")
    assert found.model == "sd3-medium"
    assert found.allocated_bytes == plan("sd3-medium", on="l4").allocated_bytes


def test_another_folder_needs_torch(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "mine", "sd3-medium", "StableDiffusion3Pipeline", num_layers=5)
    with pytest.raises(MissingExtra, match=INSTALL):
        plan(str(folder), on="l4")


def test_a_step_that_was_not_traced_needs_torch() -> None:
    with pytest.raises(NotTraced, match=INSTALL) as caught:
        plan("sd3-medium", "method.targets=[to_q]", on="l4")
    assert "sd3-medium.lora.bf16.checkpointed.targets-" in str(caught.value)


def test_a_mistyped_model_and_a_mistyped_key() -> None:
    with pytest.raises(UnknownName, match=r"flux\.1-dev"):
        plan("flux.1-dve")
    with pytest.raises(ExperimentErrors, match=r"train\.batch_sise"):
        plan("sd3-medium", "train.batch_sise=4")


def test_a_question_is_hashed_as_it_was_typed() -> None:
    """The same experiment has the same hash, whatever the device."""
    found = plans("sd3-medium", on="l4,h100-sxm")
    assert len({one.experiment for one in found}) == 1
    assert plan("sd3-medium", "method.rank=8", on="l4").experiment != found[0].experiment


def test_a_model_that_refuses_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLUX.1-schnell is distilled, so that full fine-tuning of it is refused; all others are answered."""
    few = {name: catalog.denoisers()[name] for name in ("sd3-medium", "flux.1-schnell", "flux.1-dev")}
    monkeypatch.setattr(catalog, "denoisers", lambda: few)
    refused: dict[str, str] = {}
    wanted = PlanRequest(target="all", overrides=("method.kind=full",), advice="none")
    found = plan_everything(
        wanted, devices_named("h100-sxm"), None, lambda name, error: refused.update({name: str(error)})
    )
    planned = [question.experiment.model for question, _ in found]
    assert list(refused) == ["flux.1-schnell"]
    assert "distilled" in refused["flux.1-schnell"]
    assert planned == ["sd3-medium", "flux.1-dev"]


def test_a_mistake_that_refuses_every_model_is_raised() -> None:
    wanted = PlanRequest(target="all", overrides=("method.kind=lroa",), advice="none")
    with pytest.raises(ExperimentErrors, match="lroa"):
        list(plan_everything(wanted, devices_named("h100-sxm"), None, lambda name, error: None))


def test_a_name_is_canonical_in_the_question() -> None:
    asked = asked_of(PlanRequest(target="sdxl"))
    assert (asked.experiment.model, asked.model.note) == ("sdxl-unet", "'sdxl' resolved to sdxl-unet")
    assert asked_of(PlanRequest(target="sdxl-unet")).model.note is None


@pytest.mark.takes_turns
def test_all_models_are_asked_one_after_another() -> None:
    """Every denoiser of the catalogue, in its order, from what ships."""
    names = list(catalog.denoisers())
    asked = list(plan_everything(PlanRequest(target="all", advice="none"), devices_named("h100-sxm"), None))
    assert [question.experiment.model for question, _ in asked] == names
    assert [found.model for _, (found,) in asked] == names
    assert all(found.allocated_bytes > 0 for _, (found,) in asked)


def test_that_an_autoencoder_is_counted_for_a_longer_video_is_said() -> None:
    """Its passes are recorded for the model's own length alone: of a shorter video the figure is too large."""
    short = plan("hunyuanvideo", on="h100-sxm", num_frames=5)
    said = "vae-hunyuanvideo: the memory that 5 frames save; 129 frames are counted"
    assert said in short.notes
    for num_frames in (129, 161):
        other = plan("hunyuanvideo", on="h100-sxm", num_frames=num_frames)
        assert not [note for note in other.notes if "the larger figure" in note]


def test_a_size_that_is_requested_twice_is_refused() -> None:
    """A remedy that is typed behind an option would otherwise change nothing."""
    with pytest.raises(UserError, match=r"data\.num_frames is also requested by an option"):
        plan("wan2.1-t2v-1.3b", "data.num_frames=33", num_frames=81)
    with pytest.raises(UserError, match=r"data\.resolution is also requested"):
        plan("sdxl-unet", "data.resolution=512", height_px=512, width_px=768)
    assert plan("wan2.1-t2v-1.3b", "data.num_frames=33", "data.resolution=416x240").sizes["num_frames"] == 33
