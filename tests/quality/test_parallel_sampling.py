"""Images of several devices are those of one, in the same order."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretune.choices.running import Parallel
from foretune.core.observer import Observer
from foretune.data.buckets import Bucket
from foretune.quality import parallel_sampling
from foretune.quality.parallel_sampling import SamplingTask, sample_task
from foretune.training.sampled_model import SampledModel
from foretune.training.sampling import SampleRequest
from foretune.training.sampling_setup import SamplingChoice, sampling_setup

TinyPipeline = Callable[..., Path]


def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Does the work of each process in this one; returns the numbers of processes that were requested."""
    requested: list[int] = []

    def launch(
        what: str, parallel: Parallel, worker: str, request: Mapping[str, Any], observer: Observer
    ) -> dict[str, Any]:
        assert (what, worker) == ("Sampling", "foretune.quality.parallel_sampling")
        requested.append(parallel.devices)
        for rank in range(parallel.devices):
            with monkeypatch.context() as patch:
                patch.setenv("RANK", str(rank))
                patch.setenv("WORLD_SIZE", str(parallel.devices))
                parallel_sampling._sample_share(json.loads(json.dumps(request)), observer)
        return {}

    monkeypatch.setattr(parallel_sampling, "launch_parts", launch)
    return requested


@pytest.mark.parametrize("family", ["flux", "ddpm"])
def test_images_of_several_devices_are_those_of_one(
    family: str, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = sampling_setup(SamplingChoice(device="cpu", precision="fp32"))
    model = SampledModel(folder=tiny_pipeline(family))
    prompts = ("a small red circle on blue", "a large green star on white", "a white cross")
    request = SampleRequest(prompts=prompts, seed=3, num_inference_steps=1, size=Bucket(32, 32), num_text_tokens=16)
    task = SamplingTask(model=model, request=request, num_seeds=3, batch_size=2)
    texts = setup.encode(model.family, model.folder, prompts, 16)
    alone = sample_task(task, setup, texts, 1, Observer(), "sampling")
    requested = one_after_the_other(monkeypatch)
    shared = sample_task(task, setup, texts, 2, Observer(), "sampling")
    assert requested == [2]
    assert len(alone.images) == len(shared.images) == 9
    for number, (one, other) in enumerate(zip(alone.images, shared.images, strict=True)):
        assert np.array_equal(one, other), number
    assert not np.array_equal(alone.images[0], alone.images[1])
    assert shared.images_per_s > 0


def test_no_more_processes_than_batches(tiny_pipeline: TinyPipeline) -> None:
    request = SampleRequest(
        prompts=("a", "b", "c"), seed=0, num_inference_steps=1, size=Bucket(32, 32), num_text_tokens=16
    )
    task = SamplingTask(model=SampledModel(folder=tiny_pipeline("ddpm")), request=request, batch_size=2)
    assert [task.num_processes(devices) for devices in (1, 2, 8)] == [1, 2, 2]
