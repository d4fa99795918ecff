"""The device, dtype and base with which a model is sampled outside of training.

Text encoders, the denoiser and the autoencoder are not on the device at the same time: captions are encoded first, and
the encoders are freed before the denoiser is loaded.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretune.accelerator.memory import free_memory
from foretune.choices.experiment import Experiment
from foretune.choices.inference import InferenceForm
from foretune.choices.quantize import EncoderNumbers, Quantize, sampled_numbers
from foretune.choices.training import CompileMode, Precision
from foretune.data.at_once import CAPTIONS_AT_ONCE
from foretune.models.family import Conditioning
from foretune.models.trainable import TrainableFamily
from foretune.step.levers.compiling import check_compiler
from foretune.step.precision import PrecisionPolicy
from foretune.step.quantizing import check_quantization
from foretune.training.base_loading import LoadRequest, load_base
from foretune.training.devices import available_devices, choose_device
from foretune.training.encoding import encode_captions, load_text_encoders
from foretune.training.sampling import pipeline_around


@dataclass(frozen=True, kw_only=True)
class SamplingChoice(InferenceForm):
    """What was requested; None is as the run has it."""

    device: str | None = None
    text_encoders: EncoderNumbers | None = None
    vae_tiling: bool | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingSetup:
    """How models are loaded and sampled, the same for all that are compared."""

    device: torch.device
    precision: Precision
    quantize: Quantize
    vae_tiling: bool
    compile: CompileMode = "off"
    merge: bool = False
    """Adapters are added to the weights."""

    @property
    def policy(self) -> PrecisionPolicy:
        return PrecisionPolicy(self.precision)

    @property
    def dtype(self) -> torch.dtype:
        return self.policy.compute_dtype

    def encode(
        self, family: TrainableFamily, folder: Path, texts: Sequence[str], num_text_tokens: int
    ) -> dict[str, Conditioning]:
        """Encodes captions, without a batch dimension, to the device; the text encoders are freed."""
        if not family.text_parts:
            return {}
        encoders = load_text_encoders(family, folder, self.dtype, self.quantize.text_encoders, self.device)
        encoded = self.encoded_by(encoders, family, texts, num_text_tokens)
        del encoders
        free_memory()
        return encoded

    def encoded_by(
        self, encoders: Any, family: TrainableFamily, texts: Sequence[str], num_text_tokens: int
    ) -> dict[str, Conditioning]:
        """Encodes captions with loaded encoders."""
        texts = tuple(dict.fromkeys((*texts, "")))
        encoded: dict[str, Conditioning] = {}
        for start in range(0, len(texts), CAPTIONS_AT_ONCE):
            part = texts[start : start + CAPTIONS_AT_ONCE]
            made = encode_captions(family, encoders, part, num_text_tokens)
            encoded |= {text: self._moved(one) for text, one in zip(part, made, strict=True)}
        return encoded

    def load_base(self, family: TrainableFamily, folder: Path) -> nn.Module:
        """Loads a model's denoiser to the device, quantised if requested."""
        request = LoadRequest(dtype=self.dtype, device=self.device, quantize=self.quantize)
        denoiser, _ = load_base(family, folder, request)
        return denoiser.eval()

    def pipeline(self, family: TrainableFamily, folder: Path, denoiser: nn.Module) -> Any:
        """Returns a pipeline without text encoders around a denoiser that is on the device."""
        return pipeline_around(family, folder, denoiser, self.device, vae_tiling=self.vae_tiling)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Surrounds sampling: without gradients, in the precision."""
        with torch.no_grad(), self.policy.products(), self.policy.autocast(self.device.type):
            yield

    def _moved(self, conditioning: Conditioning) -> Conditioning:
        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

        return {name: moved(tensor) for name, tensor in conditioning.items()}


def sampling_setup(choice: SamplingChoice, experiment: Experiment | None = None, local_rank: int = 0) -> SamplingSetup:
    """Fills in what was left out: from the run, or without one a half precision where there is an accelerator.

    Of several processes of this machine each has its own device. Raises what the device or the installed libraries
    cannot do, before anything is loaded.
    """
    device = choose_device(choice.device or _device_of(experiment), local_rank)
    numbers = choice.quantize or ("none" if experiment is None else experiment.quantize.denoiser)
    encoder_numbers = choice.text_encoders or ("none" if experiment is None else experiment.quantize.text_encoders)
    quantize = Quantize(
        denoiser=sampled_numbers(numbers),
        text_encoders=encoder_numbers,
        keep=None if experiment is None else experiment.quantize.keep,
    )
    check_quantization(quantize, device)
    if choice.compile != "off":
        check_compiler(device)
    tiling = choice.vae_tiling
    if tiling is None:
        tiling = experiment is not None and experiment.levers.vae_tiling
    return SamplingSetup(
        device=device,
        precision=choice.precision or (usual_precision(device) if experiment is None else experiment.train.precision),
        quantize=quantize,
        vae_tiling=tiling,
        compile=choice.compile,
        merge=choice.merge,
    )


def usual_precision(device: torch.device) -> Precision:
    """Returns the numbers in which a model is sampled where no run says otherwise."""
    if device.type == "cpu":
        return "fp32"
    is_without_bf16 = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return "fp16" if is_without_bf16 else "bf16"


def _device_of(experiment: Experiment | None) -> str:
    """Returns the device that a run requests, if this machine has one of its type."""
    asked = "auto" if experiment is None else experiment.parallel.device
    return asked if asked in {device.type for device in available_devices()} else "auto"
