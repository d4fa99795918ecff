"""Plans inference on a device: memory, verdict, time, price, and what makes it fit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.catalog.devices import Device, cards_of
from foretune.catalog.number_formats import multiplies
from foretune.choices.objections.quantization import FLOAT8_PRODUCTS
from foretune.core.errors import UserError
from foretune.core.values.inference_plan import InferencePlan, InferenceRemedy, InferenceTime
from foretune.core.values.plan import Verdict
from foretune.planner.asking import LiveSource
from foretune.planner.host_memory import HostBudget, host_memory_of
from foretune.planner.inference.memory import PipelineMemory, in_words
from foretune.planner.inference.question import InferenceQuestion, InferenceSubject, subject_of
from foretune.planner.inference.time import PipelinePasses
from foretune.planner.overheads import usable_bytes
from foretune.planner.phase_memory import Phase
from foretune.planner.timing.job import S_PER_HOUR
from foretune.planner.timing.speed import NotKnown
from foretune.planner.timing.terms import PUBLISHED, Terms
from foretune.planner.traces import NotTraced
from foretune.planner.verdict import COMPILED_ERROR, TRACE_ERROR, Band, judge

_VERDICTS: tuple[Verdict, ...] = ("fits", "tight", "does not fit")
_THOUSAND = 1000
_SAME_RESULT: tuple[dict[str, Any], ...] = (
    {"offload": "encoders"},
    {"vae_tiling": True},
    {"offload": "encoders", "vae_tiling": True},
    {"offload": "model"},
    {"offload": "model", "vae_tiling": True},
)
"""The smallest change first. Smaller batches are tried before parts are copied back and forth for each batch."""
_QUANTIZED: tuple[dict[str, Any], ...] = tuple(
    {"quantize": numbers, **others}
    for numbers in ("int8", "nf4")
    for others in ({}, {"offload": "encoders"}, {"offload": "encoders", "vae_tiling": True})
)


@dataclass(frozen=True)
class _Judged:
    """The stretch with the most memory on a device."""

    allocated_bytes: int
    reserved_bytes: int
    process: Band
    verdict: Verdict


class InferencePlanner:
    """Plans one model; traces and sizes are found once for all devices and settings."""

    def __init__(self, question: InferenceQuestion, live: LiveSource | None) -> None:
        self._question, self._live = question, live
        self._subjects: dict[tuple[InferenceQuestion, bool], InferenceSubject] = {}
        self._memory: dict[tuple[InferenceQuestion, bool], PipelineMemory] = {}
        self._passes: dict[bool, PipelinePasses] = {}

    @property
    def note(self) -> str | None:
        """How the model's name was understood, after the first plan."""
        return next((subject.reference.note for subject in self._subjects.values()), None)

    def plan_on(
        self, device: Device, *, terms: Terms = PUBLISHED, host: HostBudget | None = None, advises: bool = True
    ) -> InferencePlan:
        """Returns the plan for one device."""
        if len(cards_of(device)) > 1:
            raise UserError(
                f"{device.name}: inference is planned on one device. Run: foretune plan MODEL --inference --on "
                f"{cards_of(device)[0].name}"
            )
        question, subject = self._question, self._subject(self._question, device)
        memory, judged = self._pipeline(question, device), self._judged(question, device)
        phases, size, found = memory.phases, subject.found.size, subject.found
        time, no_time, time_notes = self._time(subject, device, terms)
        price = terms.price_of(device)
        return InferencePlan(
            model=found.subject.row.name,
            device=device.name,
            batch_size=question.batch_size,
            height_px=size.height_px,
            width_px=size.width_px,
            num_frames=size.num_frames,
            num_text_tokens=size.num_text_tokens,
            precision=question.precision,
            quantize=question.quantize,
            compile=question.compile,
            offload=question.offload,
            vae_tiling=question.vae_tiling,
            adapter_rank=question.adapter_rank,
            num_inference_steps=question.num_inference_steps,
            phases=tuple(in_words(phase.memory) for phase in phases),
            worst_phase=max(phases, key=lambda phase: phase.memory.device_bytes).name,
            allocated_bytes=judged.allocated_bytes,
            reserved_bytes=judged.reserved_bytes,
            process_low_bytes=judged.process.low,
            process_bytes=judged.process.likely,
            process_high_bytes=judged.process.high,
            usable_bytes=usable_bytes(device),
            verdict=judged.verdict,
            host=host_memory_of(None, phases, device, host),
            time=time,
            no_time=no_time,
            usd_per_hour=price.usd,
            price_source=price.source,
            usd_per_thousand=None if time is None or price.usd is None else _usd(time, price.usd),
            remedies=tuple(self._remedies(device)) if advises and judged.verdict != "fits" else (),
            warnings=tuple(_warnings(question, device)),
            assumptions=tuple(_assumptions(subject)),
            notes=(*_notes(phases), *time_notes),
            traces=tuple(f"{name} {stamp}" for name, stamp in sorted(found.traces.used.items())),
        )

    def _subject(self, question: InferenceQuestion, device: Device) -> InferenceSubject:
        key = question, device.kind == "cpu"
        if key not in self._subjects:
            self._subjects[key] = subject_of(question, self._live, on_host=key[1])
        return self._subjects[key]

    def _pipeline(self, question: InferenceQuestion, device: Device) -> PipelineMemory:
        key = question, device.kind == "cpu"
        if key not in self._memory:
            self._memory[key] = PipelineMemory(self._subject(question, device))
        return self._memory[key]

    def _judged(self, question: InferenceQuestion, device: Device) -> _Judged:
        found = self._subject(question, device).found
        judged = [
            judge(
                phase.events,
                found.overhead_on(device),
                usable_bytes(device),
                error_share=COMPILED_ERROR if question.compile != "off" else TRACE_ERROR,
                replays=found.traces.replays,
            )
            for phase in self._pipeline(question, device).stretches
        ]
        worst = max(judged, key=lambda one: (_VERDICTS.index(one.verdict), one.process.likely))
        return _Judged(
            max(one.allocated_bytes for one in judged),
            max(one.reserved_bytes for one in judged),
            worst.process,
            worst.verdict,
        )

    def _time(
        self, subject: InferenceSubject, device: Device, terms: Terms
    ) -> tuple[InferenceTime | None, str | None, tuple[str, ...]]:
        on_host = device.kind == "cpu"
        try:
            if on_host not in self._passes:
                self._passes[on_host] = PipelinePasses(subject)
            passes = self._passes[on_host]
            return passes.timed_on(device, terms), None, passes.notes
        except (NotKnown, NotTraced) as missing:
            return None, str(missing), ()

    def _remedies(self, device: Device) -> Iterator[InferenceRemedy]:
        """Yields the first settings that leave the result as it is, then the first with a quantised denoiser.

        Settings with which it is tight count only where none fit and it does not fit without them.
        """
        question = self._question
        batches = [{"batch": size} for size in _halves(question.batch_size)]
        same = [*_SAME_RESULT[:3], *batches, *_SAME_RESULT[3:]]
        quantized = _QUANTIZED if question.quantize == "none" else ()
        for changes, is_other in ((same, False), (quantized, True)):
            found = self._first(changes, device, changes_the_result=is_other)
            if found is not None:
                yield found

    def _first(
        self, changes: Sequence[Mapping[str, Any]], device: Device, *, changes_the_result: bool
    ) -> InferenceRemedy | None:
        tight = None
        was_tight = self._judged(self._question, device).verdict == "tight"
        for change in changes:
            question = self._question.with_settings(change)
            if question == self._question:
                continue
            try:
                judged = self._judged(question, device)
            except UserError:
                continue
            remedy = InferenceRemedy(
                settings={key: str(value).lower() for key, value in change.items()},
                changes_the_result=changes_the_result,
                process_bytes=judged.process.likely,
                verdict=judged.verdict,
            )
            if judged.verdict == "fits":
                return remedy
            if judged.verdict == "tight" and not was_tight:
                tight = tight or remedy
        return tight


def _halves(batch_size: int) -> Iterator[int]:
    while batch_size > 1:
        batch_size //= 2
        yield batch_size


def _usd(time: InferenceTime, usd_per_hour: float) -> float:
    """A whole card is rented, also where it is two devices to PyTorch."""
    return usd_per_hour * _THOUSAND * time.sample_s / S_PER_HOUR


def _notes(phases: Sequence[Phase]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for phase in phases for note in phase.notes))


def _warnings(question: InferenceQuestion, device: Device) -> Iterator[str]:
    if question.precision == "bf16" and multiplies(device, "bf16") is False:
        yield (
            f"{device.name} has no bf16 units, so PyTorch emulates bf16 at the rate of fp32. "
            "Run: foretune plan MODEL --inference --precision fp16"
        )
    if question.quantize in FLOAT8_PRODUCTS and device.kind == "cuda" and multiplies(device, "fp8") is False:
        yield (
            f"{device.name} does not multiply in float8. For weights in float8 alone, run: "
            "foretune plan MODEL --inference --quantize float8"
        )


def _assumptions(subject: InferenceSubject) -> Iterator[str]:
    question, size = subject.question, subject.found.size
    if size.num_text_tokens:
        yield f"prompts are padded to {size.num_text_tokens} tokens"
    where = {
        "none": "all parts stay on the device",
        "encoders": "the text encoders leave the device before the denoiser is loaded",
        "model": "each part is on the device only while it computes",
    }
    yield f"{where[question.offload]}, with weights in {question.precision}"
    yield "a batch is encoded, denoised and decoded at once; loading the model is not in its time"
    yield "guidance is that of the pipeline's default"
