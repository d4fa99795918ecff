"""Time of inference: encoding, all denoising steps and decoding of one batch, from the kernel times of their traces."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from foretune.catalog.devices import Device
from foretune.choices.training import Precision
from foretune.core.values.inference_plan import InferenceTime
from foretune.core.values.step_trace import OUTSIDE, Growth, StepTrace, Work
from foretune.planner.around import guided_batch, passes_of_a_step
from foretune.planner.encoders import BYTES_PER_WEIGHT
from foretune.planner.inference.memory import upcasts_autoencoder
from foretune.planner.inference.question import InferenceSubject
from foretune.planner.timing.constants import time_error
from foretune.planner.timing.forecast import checked_seconds, unknown_speed
from foretune.planner.timing.passes import autoencoder_passes, passes_seconds, takes_first_frame, text_passes
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from foretune.planner.timing.step_time import StepSeconds, TimedTrace
from foretune.planner.timing.terms import Terms
from foretune.planner.timing.work_times import PASS, Float32Formats
from foretune.planner.traces import mixed_step

_DTYPES: dict[Precision, str] = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_TRACED = "bfloat16"


class TimedBatch(NamedTuple):
    """The time of a batch, and the parts that have no time."""

    time: InferenceTime
    notes: tuple[str, ...]


class PipelinePasses:
    """All passes of one batch with their traces, on whatever device."""

    def __init__(self, subject: InferenceSubject) -> None:
        self._subject, self._run = subject, subject.run
        question, run = subject.question, subject.run
        self._denoiser = _denoiser_trace(subject)
        self.passes_per_step, self.samples_per_pass = 1, question.batch_size
        self._encoding: list[TimedTrace] = []
        self._decoding: list[TimedTrace] = []
        self.notes: tuple[str, ...] = ()
        if not question.only_denoising:
            self.passes_per_step = passes_of_a_step(run)
            self.samples_per_pass *= guided_batch(run)
            self._find_encoding_and_decoding()

    def _find_encoding_and_decoding(self) -> None:
        subject, run, question = self._subject, self._run, self._subject.question
        is_guided = self.passes_per_step > 1 or guided_batch(run) > 1
        encoding = list(text_passes(run, question.batch_size, 2 if is_guided else 1))
        if takes_first_frame(run):
            # The clip with its first frame alone is encoded once.
            encoding += list(autoencoder_passes(run, "encode", question.batch_size, 1 / 2))
        decoding_run = run
        if upcasts_autoencoder(subject):
            train = run.experiment.train.model_copy(update={"precision": "fp32"})
            decoding_run = replace(run, experiment=run.experiment.model_copy(update={"train": train}))
        decoding = list(autoencoder_passes(decoding_run, "decode", question.batch_size, 1))
        self._encoding = self._in_precision(encoding, question.precision)
        self._decoding = self._in_precision(decoding, decoding_run.experiment.train.precision)
        untimed = [name for name in (*encoding, *decoding) if isinstance(name, str)]
        system = run.denoiser.system
        if system is not None and system.image_encoder is not None:
            untimed.append(system.image_encoder)
        self.notes = tuple(f"the time of {name}, which has no trace" for name in untimed)

    def timed_on(self, device: Device, terms: Terms) -> InferenceTime:
        """Returns the time of a batch. Raises `NotKnown` if something of it is not known."""
        question = self._subject.question
        unknown_speed(self._subject.experiment)
        if question.offload == "model":
            raise NotKnown("the speed of copies from memory that is not page-locked, as diffusers offloads parts")
        speed = terms.speeds(device)
        pass_s, guided_s = (
            self._denoising_s(size, device, speed) for size in (question.batch_size, self.samples_per_pass)
        )
        encoding_s, decoding_s = (self._seconds(one, speed).step_s for one in (self._encoding, self._decoding))
        step_s = self.passes_per_step * guided_s
        total_s = encoding_s + question.num_inference_steps * step_s + decoding_s
        error = time_error(speed.evidence)
        return InferenceTime(
            encoding_s=encoding_s,
            pass_s=pass_s,
            step_s=step_s,
            decoding_s=decoding_s,
            total_s=total_s,
            low_s=total_s / (1 + error),
            high_s=total_s / (1 - error),
            passes_per_step=self.passes_per_step,
            samples_per_pass=self.samples_per_pass,
            denoising_passes_per_s=1 / pass_s,
            denoising_steps_per_s=1 / step_s,
            samples_per_s=question.batch_size / total_s,
            sample_s=total_s / question.batch_size,
            evidence=speed.evidence,
        )

    def _denoising_s(self, num_samples: int, device: Device, speed: DeviceSpeed) -> float:
        one = replace(self._denoiser, sizes=(num_samples, *self._denoiser.sizes[1:]))
        return checked_seconds(self._seconds([one], speed), self._subject.experiment, device).step_s

    def _seconds(self, passes: Iterable[TimedTrace], speed: DeviceSpeed) -> StepSeconds:
        found = self._subject.found
        return passes_seconds(passes, speed, found.traces.work_times, is_cpu=found.trains_on_host)

    def _in_precision(self, passes: Iterable[TimedTrace | str], precision: Precision) -> list[TimedTrace]:
        # How fp32 tensors are multiplied is set by the precision of inference, also where decoding is in fp32.
        formats = Float32Formats.of_step(self._subject.question.precision)
        return [
            replace(one, trace=_in_dtype(one.trace, precision), formats=formats)
            for one in passes
            if isinstance(one, TimedTrace)
        ]


def _denoiser_trace(subject: InferenceSubject) -> TimedTrace:
    """Returns one forward pass of the denoiser: the forward part of a training step."""
    found, question = subject.found, subject.question
    mixed = mixed_step(found.traces, subject.dense_experiment, found.size, found.subject.geometry, found.numerics)
    trace = _in_dtype(mixed.checkpointed, question.precision)
    is_quantized = question.quantize != "none"
    if is_quantized and question.adapter_rank is None:
        trace = trace.model_copy(update={"work": tuple(map(_with_frozen_weights, trace.work))})
    how_often = {(PASS, OUTSIDE): 1.0, **{(PASS, number): float(kind.count) for number, kind in enumerate(trace.kinds)}}
    return TimedTrace(
        trace=trace,
        sizes=found.size.in_trace(found.subject.geometry),
        layer=question.quantize if is_quantized else "",
        how_often=how_often,
        formats=Float32Formats.of_step(question.precision),
        only_forward=True,
    )


def _in_dtype(trace: StepTrace, precision: Precision) -> StepTrace:
    """Returns a trace that was recorded in bf16 as it is in another precision: numbers of other bytes."""
    if precision == "bf16" or all(work.dtype != _TRACED for work in trace.work):
        return trace
    wider = BYTES_PER_WEIGHT[precision] // BYTES_PER_WEIGHT["bf16"]
    work = tuple(
        one.model_copy(update={"dtype": _DTYPES[precision], "bytes_moved": _times(one.bytes_moved, wider)})
        if one.dtype == _TRACED
        else one
        for one in trace.work
    )
    return trace.model_copy(update={"work": work})


def _times(growth: Growth, factor: float) -> Growth:
    return Growth(terms=tuple((factor * coefficient, powers) for coefficient, powers in growth.terms))


def _with_frozen_weights(work: Work) -> Work:
    """Returns a product of a block as that of a frozen weight. Products of two activations are in attention."""
    return work.model_copy(update={"is_frozen": True}) if work.operator == "matmul" and work.kind != OUTSIDE else work
