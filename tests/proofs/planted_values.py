"""NaN and infinite values planted in a training: where each begins, and what the run must call it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from diffusers.models.autoencoders.vae import Decoder

from foretune.data.batch import Batch
from foretune.data.jobs import load_images
from foretune.data.maker import BatchMaker
from foretune.step.training_step import StepOutcome, TrainingStep
from foretune.training import encoding

PROMPT = "a large red circle on blue"


@dataclass
class Planted:
    """A value, where it is planted, and when."""

    value: float
    step: int
    """The optimizer step that meets it, counted from 0."""
    draw: int
    """Chooses among the tensors that there are."""
    name: str = "never planted"
    """What the run must name; known when it is planted."""
    current: int | None = field(default=None, init=False)
    """The step that is running."""

    def choose(self, names: Iterator[str]) -> str:
        known = sorted(names)
        return known[self.draw % len(known)]


@contextmanager
def _before_each_step(planted: Planted, act: Callable[[TrainingStep], None]) -> Iterator[None]:
    call = TrainingStep.__call__

    def watched(self: TrainingStep, step: int, *arguments: Any, **others: Any) -> StepOutcome:
        planted.current = step
        act(self)
        return call(self, step, *arguments, **others)

    with mock.patch.object(TrainingStep, "__call__", watched):
        yield


def _spoil_once(tensor: torch.Tensor, planted: Planted) -> None:
    with torch.no_grad():
        tensor.view(-1)[0] = planted.value


@contextmanager
def in_loss(planted: Planted) -> Iterator[None]:
    loss = TrainingStep.loss
    planted.name = f"the loss of step {planted.step + 1} is"

    def spoilt(self: TrainingStep, batch: Batch) -> torch.Tensor:
        is_now = torch.is_grad_enabled() and batch.step == planted.step
        return loss(self, batch) * planted.value if is_now else loss(self, batch)

    with mock.patch.object(TrainingStep, "loss", spoilt):
        yield


@contextmanager
def in_gradient(planted: Planted) -> Iterator[None]:
    hooked: list[Any] = []

    def act(step: TrainingStep) -> None:
        if hooked:
            return
        name = planted.choose(iter(step.trained))
        planted.name = f"The gradient of {name} is the first"

        def spoilt(gradient: torch.Tensor) -> torch.Tensor | None:
            return torch.full_like(gradient, planted.value) if planted.current == planted.step else None

        hooked.append(step.trained[name].register_hook(spoilt))

    with _before_each_step(planted, act):
        yield


@contextmanager
def in_weight(planted: Planted) -> Iterator[None]:
    def act(step: TrainingStep) -> None:
        if planted.current == planted.step:
            name = planted.choose(iter(step.trained))
            planted.name = name
            _spoil_once(step.trained[name], planted)

    with _before_each_step(planted, act):
        yield


@contextmanager
def in_base(planted: Planted) -> Iterator[None]:
    def act(step: TrainingStep) -> None:
        if planted.current == planted.step:
            frozen = {n: p for n, p in step.denoiser.named_parameters() if not p.requires_grad and "embed" not in n}
            name = planted.choose(iter(frozen))
            planted.name = f"{name} of the base model"
            _spoil_once(frozen[name], planted)

    with _before_each_step(planted, act):
        yield


@contextmanager
def in_average(planted: Planted) -> Iterator[None]:
    def act(step: TrainingStep) -> None:
        if planted.current == planted.step:
            assert step.ema is not None
            planted.name = planted.choose(iter(step.ema.average))
            _spoil_once(step.ema.average[planted.name], planted)

    with _before_each_step(planted, act):
        yield


@contextmanager
def in_cached_latents(planted: Planted) -> Iterator[None]:
    """As an entry that an earlier release cached."""
    make = BatchMaker.__getitem__

    def spoilt(self: BatchMaker, number: int) -> Batch:
        batch = make(self, number)
        if batch.step == planted.step and batch.micro == 0:
            assert batch.moments is not None
            row = planted.draw % len(batch)
            planted.name = f"The latents of {self.source.name(batch.indices[row])}"
            batch.moments[row] = planted.value
        return batch

    with mock.patch.object(BatchMaker, "__getitem__", spoilt):
        yield


@contextmanager
def in_pixels(planted: Planted) -> Iterator[None]:
    """So that the VAE gives latents that are not finite."""

    def spoilt(source: Any, requests: Any) -> torch.Tensor:
        images = load_images(source, requests)
        row = planted.draw % len(images)
        if planted.name == "never planted":
            planted.name = source.name(requests[row].index)
            images[row] = planted.value
        return images

    with mock.patch.object(encoding, "load_images", spoilt):
        yield


@contextmanager
def in_embeddings(planted: Planted) -> Iterator[None]:
    encode = encoding.encode_captions

    def spoilt(family: Any, encoders: Any, captions: Any, num_text_tokens: int) -> Any:
        entries = encode(family, encoders, captions, num_text_tokens)
        row = planted.draw % len(entries)
        planted.name = repr(captions[row])
        next(iter(entries[row].values()))[..., 0] = planted.value
        return entries

    with mock.patch.object(encoding, "encode_captions", spoilt):
        yield


@contextmanager
def in_sample(planted: Planted) -> Iterator[None]:
    forward = Decoder.forward
    planted.name = f"the sample for {PROMPT!r}"

    def spoilt(self: Any, *arguments: Any, **others: Any) -> torch.Tensor:
        return torch.full_like(forward(self, *arguments, **others), planted.value)

    with mock.patch.object(Decoder, "forward", spoilt):
        yield


SITES: dict[str, Callable[[Planted], Any]] = {
    "loss": in_loss,
    "gradient": in_gradient,
    "weight": in_weight,
    "base": in_base,
    "EMA": in_average,
    "cached latents": in_cached_latents,
    "pixels": in_pixels,
    "embeddings": in_embeddings,
    "sample": in_sample,
    "scaled gradient": in_gradient,
}
