"""How many processes prepare batches changes nothing about them, nor about this process."""

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.choices.data import FolderData
from foretune.core.errors import UserError
from foretune.data import loading
from foretune.data.batch import Batch
from foretune.data.buckets import Bucket
from foretune.data.held_out import held_out_batches
from foretune.data.loading import loader
from foretune.data.sources import open_source
from tests.data.made import MadeSource, make_maker, save_image

_GIVEN: dict[str, Any] = {
    "buckets": (Bucket(24, 16), Bucket(16, 16)),
    "crop": "random",
    "flip": 0.5,
    "caption_dropout": 0.3,
    "gradient_accumulation": 2,
    "has_autoencoder": True,
}


def _source() -> MadeSource:
    return MadeSource([(48, 32), (30, 30), (60, 36), (32, 33)] * 3)


def _same(one: Batch, other: Batch) -> bool:
    plain = all(getattr(one, name) == getattr(other, name) for name in ("step", "micro", "indices", "captions"))
    return plain and all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("images", "noise", "posterior_noise", "uniform")
    )


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_batches_are_the_same_with_any_number_of_processes(num_workers: int):
    maker = make_maker(_source(), **_GIVEN)
    batches = list(loader(maker, 3, 12, num_workers=num_workers))
    assert [(batch.step, batch.micro) for batch in batches] == [divmod(micro, 2) for micro in range(3, 12)]
    assert all(_same(batch, maker[micro]) for micro, batch in zip(range(3, 12), batches, strict=True))


def test_a_process_that_starts_again_makes_the_same_batches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loading, "start_method", lambda: "spawn")
    maker = make_maker(_source(), **_GIVEN)
    batches = list(loader(maker, 0, 3, num_workers=1))
    assert len(batches) == 3
    assert all(_same(batch, maker[micro]) for micro, batch in enumerate(batches))


@pytest.mark.gpu
def test_workers_of_a_process_that_uses_a_gpu_start_anew():
    device = torch.device("cuda")
    torch.zeros(1, device=device)
    assert loading.start_method() == "spawn"
    maker = make_maker(_source(), **_GIVEN)
    batches = list(loader(maker, 0, 2, num_workers=1, device=device))
    assert all(batch.noise.is_pinned() and batch.uniform.is_pinned() for batch in batches)
    assert all(_same(batch, maker[micro]) for micro, batch in enumerate(batches))


def test_a_process_that_holds_a_device_is_not_copied(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert loading.start_method() == "fork"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert loading.start_method() == "spawn"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_global_generator_is_left_alone(num_workers: int):
    maker = make_maker(_source())
    before = torch.get_rng_state()
    for _ in loader(maker, 0, 2, num_workers=num_workers):
        pass
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_user_s_mistake_comes_back_as_its_sentence(tmp_path: Path, num_workers: int):
    image = save_image(tmp_path / "images" / "a.png", size_px=(16, 16))
    source = open_source(
        FolderData(kind="folder", path=str(image.parent), cache_dir=str(tmp_path)), largest=Bucket(16, 16)
    )
    maker = make_maker(source, batch_size=1)
    image.write_bytes(b"broken")
    with pytest.raises(UserError, match=r"^The image .*a\.png cannot be read") as caught:
        list(loader(maker, 0, 1, num_workers=num_workers))
    assert "Traceback" not in str(caught.value)


def test_a_loader_left_early_ends_its_processes():
    batches = iter(loader(make_maker(_source()), 0, 10**9, num_workers=1))
    assert next(batches).step == 0
    assert len(multiprocessing.active_children()) == 1
    batches.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_held_out_batches_load_the_same_way():
    held_out = held_out_batches(make_maker(_source(), **_GIVEN), [0, 1, 2, 3], num_repeats=2)
    loaded = list(loader(held_out, 0, len(held_out), num_workers=1))
    assert len(loaded) == len(held_out) > 1
    assert all(_same(one, other) for one, other in zip(loaded, held_out, strict=True))
