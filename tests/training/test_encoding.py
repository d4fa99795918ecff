"""Filling the caches."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from foretune.data.at_once import IN_A_BATCH
from foretune.models.trainable import TrainableFamily
from foretune.training import encoding
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
