"""The resolved settings of an evaluation, the same for both columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from foretune.choices.inference import InferenceForm, form_of
from foretune.choices.training import ObjectiveChoice
from foretune.core.errors import Refused
from foretune.core.observer import Observer
from foretune.models.objectives import Objective
from foretune.quality.batched import images_at_once
from foretune.quality.clip_model import Clip, open_clip
from foretune.quality.extractors import Extractor, check_extractor, open_extractor
from foretune.quality.held_out import NUM_BANDS, EvaluationData
from foretune.quality.request import LEVELS, EvaluationRequest
from foretune.quality.subjects import EvaluatedModel
from foretune.training.sampling import SampleRequest
from foretune.training.sampling_setup import SamplingChoice, SamplingSetup, sampling_setup
from foretune.training.sizes import sampling_size

NO_RUN = "it needs held-out images, and a model without a run has none. Evaluate a run"


@dataclass(frozen=True)
class Setting:
    """Prompts, seeds, sizes, data and devices of one evaluation."""

    request: EvaluationRequest
    subject: EvaluatedModel
    sampling: SampleRequest
    data: EvaluationData | None
    """None if there is no run that provides data."""
    setup: SamplingSetup
    """Device, precision and quantised base of both columns."""

    @property
    def num_seeds(self) -> int:
        return self.request.num_seeds

    @property
    def num_samples(self) -> int:
        """Number of images that each column samples."""
        return len(self.sampling.prompts) * self.num_seeds

    @property
    def batch_size(self) -> int:
        """Images in one call of the pipeline: as requested, or as many as usual, with a share for each device."""
        shared = -(-self.num_samples // self.request.devices)
        return self.request.batch_size or min(images_at_once(self.sampling.size), shared)

    @property
    def base_steps(self) -> int:
        return self.request.base_num_inference_steps or self.sampling.num_inference_steps

    @property
    def objective(self) -> Objective:
        """The training objective."""
        return self.subject.family.objective(self._objective_choice)

    @property
    def trained_guidance(self) -> float:
        """The guidance scale of the denoiser outside sampling."""
        return self._objective_choice.guidance_scale

    @property
    def has_text(self) -> bool:
        return bool(self.subject.family.text_parts)

    @property
    def repeats_over(self) -> str:
        """The meaning of the clusters of samples; without text they are arbitrary groups."""
        return "prompts" if self.has_text else "groups of samples"

    @property
    def held_out_items(self) -> str:
        return "held-out images" if self.sampling.size.num_frames is None else "held-out clips"

    def why_no_frames(self) -> str | None:
        """Returns why nothing can be said about movement; None for clips."""
        return None if self.sampling.size.num_frames is not None else "the model makes images, not clips"

    def why_not_of_clips(self) -> str | None:
        """Returns why a metric of images is not computed for clips; None for images."""
        return None if self.sampling.size.num_frames is None else "it is defined for images, and the model makes clips"

    def why_no_held_out(self) -> str | None:
        """Returns why there are no held-out images; None if there are."""
        if self.data is None:
            return NO_RUN
        if not self.data.held_out:
            return "no image was held out of training. Train with data.held_out=0.05"
        return None

    def why_not_shapes(self) -> str | None:
        """Returns why a drawing cannot be read from the pixels; None if it can."""
        if self.data is not None and self.data.is_shapes:
            if (why := self.why_not_of_clips()) is not None:
                return why
            size = self.sampling.size
            is_square = size.width_px == size.height_px
            return None if is_square else f"it is read from drawings that are square, and these are of {size.text}"
        lack = (
            "this data is of another kind"
            if self.data is not None
            else "a model without a run has no data. Evaluate a run"
        )
        return f"it is read from the pixels of drawn shapes (data.kind: shapes), and {lack}"

    def band_names(self) -> tuple[str, ...]:
        """Returns the noise levels of each band of the held-out loss."""
        draws = torch.linspace(0, 1, NUM_BANDS + 1, dtype=torch.float64).clamp(max=1 - 1e-9)
        edges = self.objective.noise_level(draws).tolist()
        digits = 2 if max(edges) <= 1 else 0
        return tuple(f"{min(pair):.{digits}f} to {max(pair):.{digits}f}" for pair in pairwise(edges))

    @cached_property
    def extractor(self) -> Extractor:
        """The feature extractor of FID and KID."""
        return open_extractor(self.request.extractor, self.subject.family, self.subject.folder, self.setup.device)

    @cached_property
    def clip(self) -> Clip:
        """The model of the CLIP score."""
        assert self.request.clip is not None, "the score is absent without"
        return open_clip(self.request.clip, self.setup.device)

    @cached_property
    def reference_features(self) -> torch.Tensor:
        """The extractor's features of the training images."""
        assert self.data is not None, "asked only where there are data"
        return self.extractor.features(self.data.training_images)

    def described(self) -> dict[str, Any]:
        """Returns everything that determines the images and the scores."""
        return {
            "prompts": list(self.sampling.prompts),
            "seeds": [self.sampling.seed + number for number in range(self.num_seeds)],
            "steps": self.sampling.num_inference_steps,
            "base_steps": self.base_steps,
            "size_px": self.sampling.size.resolution,
            "num_frames": self.sampling.size.num_frames,
            "text_tokens": self.sampling.num_text_tokens,
            "guidance_scale": self.sampling.guidance_scale,
            "precision": self.setup.precision,
            **self._quantized(),
            **self._sampled_otherwise(),
            "device": self.setup.device.type,
            "extractor": self.request.extractor,
            "clip": self.request.clip,
            "levels": list(LEVELS),
            "objective": {"kind": type(self.objective).__name__, **vars(self.objective)},
            "noise_seed": None if self.data is None else self.data.experiment.validation.seed,
            "held_out_images": 0 if self.data is None else len(self.data.held_out),
            "data": None if self.data is None else self.data.source.fingerprint(),
        }

    def _quantized(self) -> dict[str, Any]:
        found = self.setup.quantize.model_dump(mode="json", exclude_defaults=True)
        return {"quantize": found} if {"denoiser", "text_encoders"} & found.keys() else {}

    def _sampled_otherwise(self) -> dict[str, Any]:
        """What rounding depends on, where it is not as usual."""
        usual, form = InferenceForm(), form_of(self.request)
        names = ("compile", "merge", "batch_size", "devices")
        return {name: form[name] for name in names if form[name] != getattr(usual, name)}

    @property
    def _objective_choice(self) -> ObjectiveChoice:
        experiment = self.subject.experiment
        return ObjectiveChoice() if experiment is None else experiment.objective


def settle(
    request: EvaluationRequest, subject: EvaluatedModel, data_of: EvaluatedModel | None, observer: Observer
) -> Setting:
    """Fills in what a request leaves out. `data_of` is the run that provides the data: the subject or its base."""
    check_extractor(request.extractor)
    family = subject.family
    experiment = None if data_of is None else data_of.experiment
    if family.takes_first_frame:
        raise Refused(
            "foretune evaluate samples from captions alone, and this model continues a given first frame. The held-out "
            "loss of a run is in its report, with samples that continue held-out clips."
        )
    choice = SamplingChoice(
        **form_of(request),
        device=request.device,
        text_encoders=request.quantize_text_encoders,
    )
    setup = sampling_setup(choice, experiment)
    size = sampling_size(family, request.size_px, trained=subject.trained_size)
    data = None
    if experiment is not None:
        data = EvaluationData.open(experiment, family, size, request.num_held_out, observer)
    steps = request.num_inference_steps or (28 if experiment is None else experiment.validation.num_inference_steps)
    return Setting(
        request=request,
        subject=subject,
        sampling=SampleRequest(
            prompts=_prompts(request, data, subject),
            seed=request.first_seed,
            num_inference_steps=steps,
            size=size,
            num_text_tokens=subject.num_text_tokens or family.own_text_tokens(),
            guidance_scale=(
                experiment.validation.guidance_scale
                if request.guidance_scale is None and experiment is not None
                else request.guidance_scale
            ),
        ),
        data=data,
        setup=setup,
    )


def _prompts(request: EvaluationRequest, data: EvaluationData | None, subject: EvaluatedModel) -> tuple[str, ...]:
    if request.prompts:
        return request.prompts
    if not subject.family.text_parts:
        return ("",) * request.num_prompts
    found: Sequence[str] = () if data is None else data.prompts(request.num_prompts)
    if not found and subject.experiment is not None:
        found = subject.experiment.validation.prompts[: request.num_prompts]
    if not found:
        raise Refused(
            "There is nothing to sample: no held-out image has a caption. Run: foretune evaluate RUN --prompt TEXT, "
            "or --prompts FILE"
        )
    return tuple(found)
