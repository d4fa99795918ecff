"""The forecast for inference of one model on one kind of device."""

from typing import Literal

from foretune.core.values.base import Part, Value
from foretune.core.values.plan import HostMemory, PhaseMemory, Verdict
from foretune.core.values.plan_time import TimeEvidence

Offload = Literal["none", "encoders", "model"]
"""Where parts of a pipeline are while they do not compute. none: all on the device, as `foretune bench --inference`
and `pipeline.to(device)` have them. encoders: the text encoders are freed before the denoiser is loaded, as
`foretune sample` does. model: each part is on the device only while it computes, as with
`enable_model_cpu_offload()` of diffusers."""


class InferenceTime(Part):
    """Time of one batch of images or clips, without loading the model."""

    encoding_s: float
    """Prompts, the empty one of guidance, and given first frames."""
    pass_s: float
    """One forward pass of the denoiser for the batch without guidance: what `foretune bench --inference` measures."""
    step_s: float
    """One denoising step, with all passes that guidance needs."""
    decoding_s: float
    total_s: float
    low_s: float
    high_s: float
    passes_per_step: int
    """Forward passes of the denoiser in one denoising step."""
    samples_per_pass: int
    """Samples in one of these passes: twice the batch where guidance doubles it."""
    denoising_passes_per_s: float
    """1 / pass_s."""
    denoising_steps_per_s: float
    """1 / step_s."""
    samples_per_s: float
    """Images or clips, end to end."""
    sample_s: float
    """Time of a batch over its number of images or clips."""
    evidence: TimeEvidence


class InferenceRemedy(Part):
    """Settings with which inference fits."""

    settings: dict[str, str]
    """By parameter of `plan_inference`."""
    changes_the_result: bool
    process_bytes: int
    verdict: Verdict


class InferencePlan(Value):
    """Memory by part and phase with an error band, time of a batch, cost, verdict, and what was assumed."""

    model: str
    device: str
    batch_size: int
    height_px: int
    width_px: int
    num_frames: int
    num_text_tokens: int
    precision: str
    quantize: str
    compile: str
    offload: Offload
    vae_tiling: bool
    adapter_rank: int | None
    """Rank of a LoRA that is computed beside the weights; None if there is none, or if it is merged."""
    num_inference_steps: int
    phases: tuple[PhaseMemory, ...]
    worst_phase: str
    """The phase with the most device memory."""
    allocated_bytes: int
    reserved_bytes: int
    process_low_bytes: int
    process_bytes: int
    """With driver and libraries; the band is between low and high."""
    process_high_bytes: int
    usable_bytes: int
    verdict: Verdict
    host: HostMemory | None = None
    """None where the device computes in the host's memory."""
    time: InferenceTime | None = None
    """None where something of it is not known; never a guess."""
    no_time: str | None = None
    usd_per_hour: float | None = None
    price_source: str = ""
    usd_per_thousand: float | None = None
    """1,000 images or clips; None without a time or a price."""
    remedies: tuple[InferenceRemedy, ...] = ()
    """Where it does not surely fit: first what leaves the result as it is, then a quantised denoiser."""
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is not in the figures."""
    traces: tuple[str, ...] = ()
