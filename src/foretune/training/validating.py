"""Looking at the model while it trains: the held-out loss at fixed noise, and samples at fixed seeds."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from foretune.core.interrupts import StopRequest
from foretune.data.batch import Batch
from foretune.data.held_out import HeldOutBatches
from foretune.models.family import Conditioning
from foretune.models.trainable import TrainableFamily
from foretune.step.engine import contents_replaced, is_sharded
from foretune.step.methods.training_adapter import without_training_adapter
from foretune.step.training_step import TrainingStep
from foretune.training.encoding import LiveEncoders
from foretune.training.not_finite import NotFinite
from foretune.training.preparing import Prepared
from foretune.training.ranks import ALONE, Ranks
from foretune.training.sampling import SampleRequest, pipeline_around, sample, save_sample


@dataclass
class Validator:
    """Validates one training step's model."""

    step: TrainingStep
    family: TrainableFamily
    folder: Path | None
    """None where the weights are random: there is nothing to sample with."""
    device: torch.device
    held_out: Sequence[Batch] | HeldOutBatches
    request: SampleRequest
    encoded_prompts: Sequence[Conditioning]
    unconditional: Conditioning | None
    samples_dir: Path
    encoders: LiveEncoders
    vae_tiling: bool = False
    """Whether samples are decoded in tiles."""
    ranks: Ranks = ALONE
    may_leave: Callable[[], AbstractContextManager[object]] = nullcontext
    """Surrounds what may be left in the middle: the weights of the training are put back afterwards in any case."""
    progressed: Callable[[], object] = lambda: None
    """Called at each sign that a sample is being made."""

    def held_out_loss(self) -> float | None:
        """The loss at fixed noise and levels; None where no samples are held out.

        It is the loss that is trained on, so that a training adapter stays on.
        """
        if not len(self.held_out):
            return None
        with _averaged_weights(self.step), _evaluating(self.step), self.may_leave():
            loss = mean_loss(
                self.step, self.held_out, self.device, self.ranks, ready=lambda b: self.encoders.ready(b, self.device)
            )
        if not math.isfinite(loss):
            raise NotFinite(f"the held-out loss is {loss}")
        return loss

    def samples(self, steps_done: int) -> tuple[Path, ...]:
        """Pictures of the asked prompts, at fixed seeds, which the first process writes.

        Where the weights are sharded all processes sample the same pictures, because none has the model alone.
        Otherwise they wait for the first one, which may take longer than a process waits in a collective.
        """
        if not self.request.prompts:
            return ()
        if self.ranks.size == 1 or any(map(is_sharded, self.step.denoiser.parameters())):
            return self._samples(steps_done, self.progressed)
        if not self.ranks.is_first:
            self.ranks.wait_for_first(self.progressed)
            return ()
        with self.ranks.first_works_alone() as show:
            return self._samples(steps_done, lambda: (show(), self.progressed()))

    def _samples(self, steps_done: int, progressed: Callable[[], object]) -> tuple[Path, ...]:
        def called(*_: object) -> None:  # what a hook returns would replace the arguments
            progressed()

        # Every pipeline calls the denoiser at least once in each of its steps.
        handle = self.step.denoiser.register_forward_pre_hook(called)
        try:
            with _averaged_weights(self.step), _evaluating(self.step), without_training_adapter(self.step.denoiser):
                return tuple(self._sample(steps_done))
        finally:
            handle.remove()

    def _sample(self, steps_done: int) -> Iterator[Path]:
        """The pipeline is put together around the live denoiser and taken apart again: nothing stays in memory."""
        assert self.folder is not None, "a run with random weights does not validate"
        pipeline = pipeline_around(
            self.family,
            self.folder,
            self.step.denoiser,
            self.device,
            vae_tiling=self.vae_tiling,
            left_out=self.family.image_parts,
        )
        compute = self.step.policy.compute_dtype
        encoded = [_moved(c, self.device, compute) for c in self.encoded_prompts] or None
        unconditional = _moved(self.unconditional, self.device, compute) if self.unconditional else None
        with self.may_leave(), self.step.policy.autocast(self.device.type):
            images = sample(self.family, pipeline, self.request, encoded, unconditional)
        for index, pixels in enumerate(images if self.ranks.is_first else ()):
            path = self.samples_dir / f"step-{steps_done:09d}-{index}.png"
            save_sample(pixels, path, self.family.facts.fps)
            yield path


def validator_for(
    prepared: Prepared, samples_dir: Path, stop: StopRequest, progressed: Callable[[], object] = lambda: None
) -> Validator:
    """Asked to stop, a process alone leaves a validation: it can be made after a resume, and may take minutes."""
    choice = prepared.experiment.validation
    return Validator(
        step=prepared.step,
        family=prepared.family,
        folder=prepared.folder,
        device=prepared.device,
        held_out=prepared.held_out,
        request=SampleRequest(
            prompts=choice.prompts,
            seed=choice.seed,
            num_inference_steps=choice.num_inference_steps,
            size=prepared.size,
            num_text_tokens=prepared.num_text_tokens,
            guidance_scale=choice.guidance_scale,
            first_frames=prepared.first_frames,
        ),
        encoded_prompts=prepared.encoded_prompts,
        unconditional=prepared.unconditional,
        samples_dir=samples_dir,
        encoders=prepared.encoders,
        vae_tiling=prepared.experiment.levers.vae_tiling,
        ranks=prepared.ranks,
        may_leave=stop.at_once if prepared.ranks.size == 1 else nullcontext,
        progressed=progressed,
    )


@torch.no_grad()
def mean_loss(
    step: TrainingStep,
    batches: Sequence[Batch] | HeldOutBatches,
    device: torch.device,
    ranks: Ranks = ALONE,
    ready: Callable[[Batch], Batch] = lambda batch: batch,
) -> float:
    """The mean loss over samples, each batch weighted by its size. Waits for the device once, at the end.

    Each process takes every so many batches. All of them make as many forward passes, which sharded weights need: one
    without a batch of its own repeats one, which does not count.
    """
    total = torch.zeros((), device=device)
    for first in range(0, len(batches), ranks.size):
        index = first + ranks.rank
        batch = batches[min(index, len(batches) - 1)]
        loss = step.loss(ready(batch))
        if index < len(batches):
            total += loss * len(batch.indices)
    return float(step.engine.mean(total)) * ranks.size / _num_samples(batches)


def _num_samples(batches: Sequence[Batch] | HeldOutBatches) -> int:
    return batches.num_samples if isinstance(batches, HeldOutBatches) else sum(len(batch) for batch in batches)


@contextmanager
def _evaluating(step: TrainingStep) -> Iterator[None]:
    step.denoiser.eval()
    try:
        with step.policy.products():
            yield
    finally:
        step.denoiser.train()


@contextmanager
def _averaged_weights(step: TrainingStep) -> Iterator[None]:
    """The moving average, or that of the optimizer, in the place of the weights, which come back bit for bit."""
    with contents_replaced(step.denoiser, step.trained, step.shown_weights()):
        yield


def _moved(conditioning: Conditioning, device: torch.device, dtype: torch.dtype) -> Conditioning:
    """Masks keep their dtype."""
    return {name: t.to(device, dtype if t.is_floating_point() else None) for name, t in conditioning.items()}
