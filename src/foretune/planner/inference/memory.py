"""Memory of inference: loading, encoding the prompt, denoising and decoding of one batch.

As a pipeline runs that is loaded in the precision of inference: text encoders, denoiser and autoencoder have its
weights, and nothing runs under autocast. Latents and encoded prompts, some MiB, are not counted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from foretune import catalog
from foretune.choices.forward_form import ForwardKind
from foretune.choices.quantize import EncoderNumbers
from foretune.choices.training import Precision
from foretune.core.values.plan import PhaseMemory
from foretune.core.vocabulary import InferencePhase, MemoryPart
from foretune.planner.around import guided_batch, notes_of, play_pass
from foretune.planner.encoders import BYTES_PER_WEIGHT, Pass, autoencoder_pass, sampling_pass, text_pass
from foretune.planner.inference.question import InferenceSubject
from foretune.planner.phase_memory import FILE_BYTES_PER_WEIGHT, Phase, PhaseHostMemory, loaded, phase_of
from foretune.planner.quantized import bytes_per_weight, dense_over_bits
from foretune.planner.streams import Stream
from foretune.planner.timing.passes import takes_first_frame

DENOISER = "denoiser"
ACTIVATIONS = "activations"
_TRACED_PRECISION: Precision = "bf16"
_USUAL_WIDTH = 3072
"""Inputs of a layer, for the bytes of the scales of its quantised weights: 0.1 % of them."""
_PARTS: Mapping[str, str] = {
    MemoryPart.FROZEN_WEIGHTS: DENOISER,
    MemoryPart.TRAINED_WEIGHTS: DENOISER,
    MemoryPart.TEXT_ENCODERS: MemoryPart.TEXT_ENCODERS,
    MemoryPart.AUTOENCODER: MemoryPart.AUTOENCODER,
}
"""All else is temporary."""


class PipelineMemory:
    """The parts of a pipeline, and the phases of one batch."""

    def __init__(self, subject: InferenceSubject) -> None:
        question, run = subject.question, subject.run
        self._subject, self._question, self._run = subject, question, run
        self._per_weight = BYTES_PER_WEIGHT[question.precision]
        system = run.denoiser.system
        if question.only_denoising:
            system = None
        names = () if system is None else system.text_encoders
        self._texts = [
            text_pass(run.forwards, name, question.precision, question.batch_size, run.sizes[2]) for name in names
        ]
        image_encoder = None if system is None else system.image_encoder
        self._image_encoder_bytes = (
            0 if image_encoder is None else catalog.component(image_encoder).num_params * self._per_weight
        )
        has_frames, has_autoencoder = takes_first_frame(run), run.around.vae_name is not None
        self._frames = [self._autoencoder("encode")] if has_frames and not question.only_denoising else []
        self._decoding = [self._autoencoder("decode")] if has_autoencoder and not question.only_denoising else []
        guided = 1 if question.only_denoising else guided_batch(run)
        sizes = (guided * run.sizes[0], *run.sizes[1:])
        denoising = sampling_pass(run.forwards, run.denoiser.name, question.precision, sizes)
        self._denoising = replace(denoising, widened_bytes=self._widened_bytes())

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in order, each on its own."""
        return tuple(self._phases())

    @cached_property
    def stretches(self) -> tuple[Phase, ...]:
        """The allocations that must succeed: a whole batch, or each phase where parts leave the device after it."""
        if self._question.offload != "none":
            return self.phases
        stream = self._with_weights(InferencePhase.LOAD)
        for name, passes in self._passes().items():
            for one in passes:
                play_pass(stream, one, name)
        return (phase_of(self._run, InferencePhase.LOAD, stream, host=PhaseHostMemory(0)),)

    def _phases(self) -> Iterator[Phase]:
        offload = self._question.offload
        if offload == "none":
            yield phase_of(
                self._run,
                InferencePhase.LOAD,
                self._with_weights(InferencePhase.LOAD),
                host=_most(self._loading_denoiser(), self._loading_others()),
            )
        for name, passes in self._passes().items():
            stream = self._with_weights(name)
            for one in passes:
                play_pass(stream, one, name)
            notes = (*self._run.around.notes, *notes_of(*passes))
            yield phase_of(self._run, name, stream, host=self._host(name), notes=notes)

    def _passes(self) -> dict[InferencePhase, list[Pass]]:
        """The passes of each phase that this pipeline has."""
        passes = {
            InferencePhase.ENCODE: [*self._texts, *self._frames],
            InferencePhase.DENOISE: [self._denoising],
            InferencePhase.DECODE: self._decoding,
        }
        return {name: found for name, found in passes.items() if found}

    def _with_weights(self, name: InferencePhase) -> Stream:
        """Returns a stream with the weights that are on the device in a phase."""
        stream, offload = Stream(), self._question.offload
        all_stay = offload == "none"
        if all_stay or name == InferencePhase.ENCODE:
            stream.hold(sum(text.weights_bytes for text in self._texts), MemoryPart.TEXT_ENCODERS, name)
            stream.hold(self._image_encoder_bytes, MemoryPart.TEXT_ENCODERS, name)
        if all_stay or name == InferencePhase.DENOISE or (offload == "encoders" and name == InferencePhase.DECODE):
            for part, num_bytes in self._denoiser_weights():
                stream.hold(num_bytes, part, name)
        has_autoencoder = name == InferencePhase.DECODE or bool(self._frames and name == InferencePhase.ENCODE)
        if all_stay or has_autoencoder or (offload == "encoders" and name == InferencePhase.DENOISE):
            stream.hold(self._autoencoder_bytes(), MemoryPart.AUTOENCODER, name)
        return stream

    def _denoiser_weights(self) -> Iterator[tuple[MemoryPart, int]]:
        """Yields each tensor: those of the base as stored, an adapter's in the precision."""
        around, question = self._run.around, self._question
        wider = self._per_weight // BYTES_PER_WEIGHT[_TRACED_PRECISION]
        is_quantized, is_full = question.quantize != "none", self._run.experiment.method.kind == "full"
        for event in around.lasting:
            if event.category == MemoryPart.FROZEN_WEIGHTS:
                yield MemoryPart.FROZEN_WEIGHTS, event.num_bytes * (1 if is_quantized else wider)
            elif event.category == MemoryPart.TRAINED_WEIGHTS and is_full:
                yield MemoryPart.FROZEN_WEIGHTS, event.num_bytes * wider
            elif event.category == MemoryPart.TRAINED_WEIGHTS and question.adapter_rank is not None:
                stored = BYTES_PER_WEIGHT[self._run.experiment.train.weight_dtype]
                yield MemoryPart.TRAINED_WEIGHTS, event.num_bytes * self._per_weight // stored
        if is_quantized and wider > 1:
            yield MemoryPart.FROZEN_WEIGHTS, self._kept_bytes()

    def _kept_bytes(self) -> int:
        """Returns how much more layers that are not quantised take than in the traced precision.

        P weights of which L are quantised to b bytes take 2 (P - L) + b L bytes.
        """
        stored = sum(e.num_bytes for e in self._run.around.lasting if e.category == MemoryPart.FROZEN_WEIGHTS)
        traced, num_params = BYTES_PER_WEIGHT[_TRACED_PRECISION], self._run.denoiser.num_params
        numbers: EncoderNumbers = "nf4" if self._question.quantize == "nf4" else "int8"
        num_quantized = (traced * num_params - stored) / (traced - bytes_per_weight(numbers, _USUAL_WIDTH))
        return round((self._per_weight - traced) * max(0.0, num_params - num_quantized))

    def _widened_bytes(self) -> int:
        """Returns the bytes of the largest layer of a quantised denoiser, dequantised for its product."""
        factor = dense_over_bits(self._question.quantize, self._per_weight)
        frozen = (num_bytes for part, num_bytes in self._denoiser_weights() if part == MemoryPart.FROZEN_WEIGHTS)
        return max(frozen, default=0) * factor if factor else 0

    def _autoencoder(self, kind: ForwardKind) -> Pass:
        run, question = self._run, self._question
        assert run.around.vae_name is not None
        upcasts = kind == "decode" and upcasts_autoencoder(self._subject)
        return autoencoder_pass(
            run.forwards,
            run.around.vae_name,
            kind,
            "fp32" if upcasts else question.precision,
            run.extent,
            question.batch_size,
            tiled=question.vae_tiling and kind == "decode",
            in_precision=True,
        )

    def _autoencoder_bytes(self) -> int:
        return max((one.weights_bytes for one in (*self._frames, *self._decoding)), default=0)

    def _host(self, name: InferencePhase) -> PhaseHostMemory:
        """Returns the host memory of a phase in which parts are loaded, or wait on the host."""
        offload = self._question.offload
        if offload == "model":
            num_bytes = sum(num_bytes for _, num_bytes in self._denoiser_weights())
            return PhaseHostMemory(num_bytes + self._text_bytes() + self._autoencoder_bytes())
        if offload == "encoders" and name == InferencePhase.ENCODE:
            return loaded(self._text_bytes(), self._per_weight)
        if offload == "encoders" and name == InferencePhase.DENOISE:
            return _most(self._loading_denoiser(), loaded(self._autoencoder_bytes(), self._per_weight))
        return PhaseHostMemory(0)

    def _text_bytes(self) -> int:
        """Bytes of the text encoders, and of the encoder of given first frames."""
        return sum(text.weights_bytes for text in self._texts) + self._image_encoder_bytes

    def _loading_denoiser(self) -> PhaseHostMemory:
        """Each layer is moved before the next one is read (`training.base_loading.load_base`): pages of the files."""
        return loaded(self._run.denoiser.num_params * FILE_BYTES_PER_WEIGHT, FILE_BYTES_PER_WEIGHT)

    def _loading_others(self) -> PhaseHostMemory:
        """The other parts are loaded whole, and moved then."""
        return loaded(self._text_bytes() + self._autoencoder_bytes(), self._per_weight)


def upcasts_autoencoder(subject: InferenceSubject) -> bool:
    """Whether the pipeline decodes in fp32, because the autoencoder overflows in the precision."""
    facts = subject.run.denoiser.family_facts
    return facts.upcasts_autoencoder_in_fp16 and subject.question.precision == "fp16"


def in_words(memory: PhaseMemory) -> PhaseMemory:
    """Returns the memory of a phase by the parts of a pipeline; everything temporary is one part."""
    parts: Counter[str] = Counter()
    for part, num_bytes in memory.device_bytes_by_part.items():
        parts[_PARTS.get(part, ACTIVATIONS)] += num_bytes
    by_part = dict(sorted(parts.items(), key=lambda item: -item[1]))
    return memory.model_copy(update={"device_bytes_by_part": by_part})


def _most(*hosts: PhaseHostMemory) -> PhaseHostMemory:
    return max(hosts, key=lambda host: host.num_bytes)
