"""Filling the caches."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from foretune.data.at_once import IN_A_BATCH
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily
from foretune.training import encoding
from foretune.training.encoding import EncoderPlan
from tests.training.short_runs import short_prepared


def test_large_images_go_through_the_autoencoder_a_few_at_a_time(
    tmp_path: Path, tiny_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    plain = TrainableFamily.encode_images

    def counted(self: TrainableFamily, vae: object, images: torch.Tensor) -> torch.Tensor:
        batches.append(len(images))
        return plain(self, vae, images)

    monkeypatch.setattr(TrainableFamily, "encode_images", counted)
    whole = short_prepared(tiny_pipeline("sd3"), tmp_path / "whole").batch_maker[0]
    assert set(batches) == {IN_A_BATCH}
    batches.clear()
    monkeypatch.setattr(encoding, "images_at_once", lambda *_sides: 2)
    parts = short_prepared(tiny_pipeline("sd3"), tmp_path / "parts").batch_maker[0]
    assert set(batches) == {2}
    assert whole.moments is not None
    assert parts.moments is not None
    torch.testing.assert_close(parts.moments, whole.moments)


def test_captions_of_a_pipeline_that_zeroes_empty_ones_have_cache_entries_of_their_own(
    tmp_path: Path, tiny_pipeline: Callable[..., Path]
) -> None:
    keys = []
    for name, zeroes in (("one", True), ("other", False)):
        folder = tmp_path / name
        shutil.copytree(tiny_pipeline("sdxl"), folder)
        index = json.loads((folder / "model_index.json").read_text())
        (folder / "model_index.json").write_text(json.dumps({**index, "force_zeros_for_empty_prompt": zeroes}))
        plan = EncoderPlan(
            family=open_family(folder),
            folder=folder,
            device=torch.device("cpu"),
            text_dtype=torch.float32,
            num_text_tokens=77,
            cache_dir=tmp_path / "cache",
        )
        keys.append(plan.text_lookup().text_key(""))
    assert keys[0] != keys[1]
