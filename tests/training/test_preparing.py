"""Before the first step: sizes that fit, caches that are filled once, facts that are written down."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from foretune.choices.run_schedule import PREPARATION
from foretune.core.errors import Refused
from foretune.core.vocabulary import RunPhase
from foretune.data.buckets import Bucket
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily
from foretune.training import preparing
from foretune.training.encoding import EncoderPlan
from foretune.training.preparing import prepare
from foretune.training.sizes import training_size
from tests.training.short_runs import PROMPT, Recording, short_asked, short_prepared

TinyPipeline = Callable[..., Path]


def refused(folder: Path, work: Path, **data: Any) -> str:
    with pytest.raises(Refused) as refusal:
        short_prepared(folder, work, data=data)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("family", "resolution", "nearest"), [("flux", 40, 32), ("flux", 8, 16), ("sd3", 1000, 992), ("ddpm", 33, 32)]
)
def test_a_size_the_model_cannot_take(
    family: str, resolution: int, nearest: int, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    text = refused(tiny_pipeline(family), tmp_path, resolution=resolution)
    assert f"{resolution} px is not a multiple of" in text
    assert text.endswith(f"Nearest: data.resolution={nearest}")


def test_a_size_beyond_the_models_positions(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    largest_px = open_family(tiny_pipeline("sd3")).max_resolution_px()
    assert largest_px is not None
    text = refused(tiny_pipeline("sd3"), tmp_path, resolution=2 * largest_px)
    assert text.endswith(f"Nearest: data.resolution={largest_px}")


def test_schnell_takes_half_of_devs_tokens(tiny_pipeline: TinyPipeline) -> None:
    assert open_family(tiny_pipeline("flux")).own_text_tokens() == 512
    assert open_family(tiny_pipeline("flux", "schnell")).own_text_tokens() == 256


def test_buckets_whose_sides_the_model_cannot_take(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    text = refused(tiny_pipeline("flux"), tmp_path, max_buckets=3, bucket_step_px=24)
    assert text.endswith("Nearest: data.bucket_step_px=16")
    short_prepared(tiny_pipeline("flux"), tmp_path, data={"max_buckets": 1, "bucket_step_px": 24})


def test_a_model_with_an_unknown_objective_is_refused_before_anything_is_encoded(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cosine"
    shutil.copytree(tiny_pipeline("sdxl"), folder)
    path = folder / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "beta_schedule": "squaredcos_cap_v2"}))
    monkeypatch.setattr(preparing, "open_source", lambda *_, **__: pytest.fail("the data were opened"))
    with pytest.raises(Refused, match=r"EulerDiscreteScheduler.* has beta_schedule 'squaredcos_cap_v2'"):
        short_prepared(folder, tmp_path)


def test_left_out_it_is_the_models_own(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    asked = short_asked(tiny_pipeline("sd3"), tmp_path, data={"resolution": None})
    prepared = short_prepared(tiny_pipeline("ddpm"), tmp_path, data={"resolution": None, "max_text_tokens": None})
    assert prepared.size == Bucket(32, 32)
    assert prepared.num_text_tokens == 0
    assert training_size(asked.experiment, open_family(tiny_pipeline("sd3"))) == Bucket(64, 64)


def counted_loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every encoder that is loaded, by name."""
    loaded: list[str] = []

    def count(name: str) -> None:
        original = getattr(TrainableFamily, name)

        def load(self: TrainableFamily, *args: Any) -> Any:
            loaded.append(name)
            return original(self, *args)

        monkeypatch.setattr(TrainableFamily, name, load)

    count("load_vae")
    count("load_text_encoders")
    return loaded


def test_encoders_are_loaded_only_for_what_is_not_cached(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = counted_loads(monkeypatch)
    asked = short_asked(tiny_pipeline("flux"), tmp_path, validate={"prompts": [PROMPT]})
    first = Recording()
    prepared = prepare(asked.experiment, tiny_pipeline("flux"), first)
    assert loaded == ["load_vae", "load_text_encoders"]
    assert (prepared.encoders.vae, prepared.encoders.text) == (None, None)
    assert any(text.startswith("Images: ") and " 0 from the cache." in text for text in first.of("message"))
    again = Recording()
    prepare(asked.experiment, tiny_pipeline("flux"), again)
    assert len(loaded) == 2
    assert any(text.startswith("Images: 0 encoded") for text in again.of("message"))
    assert any(text.startswith("Captions: 0 encoded") for text in again.of("message"))


def test_encoders_stay_where_nothing_is_cached(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    levers = {"cache_latents": False, "cache_text": False}
    prepared = short_prepared(tiny_pipeline("flux"), tmp_path, levers=levers, validate={"prompts": [PROMPT]})
    assert prepared.encoders.vae is not None
    assert prepared.encoders.text is not None
    batch = prepared.encoders.ready(prepared.batch_maker[0], torch.device("cpu"))
    assert batch.images is None
    assert batch.moments is not None
    assert batch.moments.shape == (2, 8, 4, 4)
    assert batch.conditioning is not None
    assert not batch.moments.requires_grad
    assert not any(tensor.requires_grad for tensor in batch.conditioning.values())
    assert len(prepared.encoded_prompts) == 1
    assert prepared.unconditional is not None


def test_only_what_will_be_seen_is_encoded(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """Three steps of two samples out of a million: no more images are encoded than are trained on or held out."""
    observer = Recording()
    asked = short_asked(tiny_pipeline("flux"), tmp_path, data={"num_samples": 1_000_000, "held_out": 0.0001})
    prepared = prepare(asked.experiment, tiny_pipeline("flux"), observer)
    assert prepared.effective["num_train_samples"] == 999_900
    rest = f"This run does not use the other {999_900 - 3 * 2:,}."
    assert f"Images: {3 * 2 + 3} encoded, 0 from the cache. {rest}" in observer.of("message")


def test_facts_that_follow(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    prepared = short_prepared(
        tiny_pipeline("flux"),
        tmp_path,
        levers={"gradient_checkpointing": 0.5},
        train={"gradient_accumulation": 3},
    )
    effective = prepared.effective
    assert effective["device"] == "cpu"
    assert effective["model_folder"] == str(tiny_pipeline("flux").resolve())
    assert (effective["num_blocks"], effective["num_checkpointed_blocks"]) == (6, 3)
    assert effective["samples_per_step"] == 6
    assert effective["buckets_px"] == [[32, 32]]
    assert len(effective["question_hash"]) == 16
    assert effective["experiment_hash"] == prepared.experiment.whole_hash()
    assert effective["num_params"] > effective["num_trained_params"] > 0


def test_preparing_twice_gives_the_same_step(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    losses = []
    for _ in range(2):
        prepared = short_prepared(tiny_pipeline("sd3"), tmp_path, train={"seed": 5})
        batch = prepared.encoders.ready(prepared.batch_maker[0], prepared.device)
        losses.append(float(prepared.step(0, 1e-3, [batch], 1).loss))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("family", "trigger", "is_reported"), [("flux", "", True), ("flux", "xyz", False), ("ddpm", "", False)]
)
def test_images_without_captions_are_reported(
    tmp_path: Path, tiny_pipeline: TinyPipeline, family: str, trigger: str, is_reported: bool
) -> None:
    """The captions may lie elsewhere; a model that reads none, or a word for all, needs none."""
    images = tmp_path / "images"
    images.mkdir()
    for index in range(3):
        Image.new("RGB", (32, 32), (index * 60, 0, 0)).save(images / f"{index}.png")
    data = {"kind": "folder", "path": str(images), "trigger": trigger or None, "cache_dir": str(tmp_path / "cache")}
    recording = Recording()
    asked = short_asked(tiny_pipeline(family), tmp_path, data={**data, "resolution": 32})
    prepare(asked.experiment, tiny_pipeline(family), recording)
    said = [warning for warning in recording.of("warning") if "caption" in warning]
    assert len(said) == is_reported
    if is_reported:
        assert said[0].startswith("None of the 3 images has a caption")


def test_it_prepares_in_the_order_that_plans_replay(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[RunPhase] = []

    def noted(phase: RunPhase, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            done.append(phase)
            return call(*arguments, **options)

        return wrapped

    monkeypatch.setattr(EncoderPlan, "fill_latents", noted(RunPhase.CACHE_LATENTS, EncoderPlan.fill_latents))
    monkeypatch.setattr(EncoderPlan, "fill_text", noted(RunPhase.CACHE_TEXT, EncoderPlan.fill_text))
    monkeypatch.setattr(preparing, "build_model", noted(RunPhase.LOAD, preparing.build_model))
    short_prepared(tiny_pipeline("flux"), tmp_path)
    assert tuple(done) == PREPARATION


@pytest.mark.parametrize(
    ("family", "most"), [("lumina2", 299), ("z_image", 992), ("chroma", 512), ("flux", 512), ("qwen_image", 1024)]
)
def test_captions_longer_than_model_and_pipeline_take_are_refused(
    family: str, most: int, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    model = tiny_pipeline(family)
    with pytest.raises(Refused, match=rf"at most {most} tokens\. Nearest: data\.max_text_tokens={most}"):
        short_prepared(model, tmp_path, data={"max_text_tokens": most + 1})
    short_prepared(model, tmp_path, data={"max_text_tokens": most})


@pytest.mark.parametrize("name", ["lumina2", "z_image"])
def test_the_longest_captions_have_positions(name: str, tiny_pipeline: TinyPipeline) -> None:
    """One token more is an index out of range in the model itself."""
    family = open_family(tiny_pipeline(name))
    denoiser = family.load_denoiser(tiny_pipeline(name), torch.float32)
    most = family.max_text_tokens()
    assert most is not None

    def predict(num_tokens: int) -> torch.Tensor:
        text = {"prompt_embeds": torch.zeros(1, num_tokens, 32), "prompt_mask": torch.ones(1, num_tokens).bool()}
        return family.predict(denoiser, torch.zeros(1, 4, 4, 4), torch.tensor([500.0]), text, guidance_scale=1.0)

    assert predict(most).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        predict(most + 1)
