"""Images and captions through their encoders: once, into the cache, or at each step where that was asked for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from foretune.accelerator.memory import free_memory
from foretune.choices.quantize import EncoderNumbers
from foretune.core.observer import Observer
from foretune.data.at_once import IN_A_BATCH, TILE_PX, images_at_once
from foretune.data.batch import Batch
from foretune.data.cache import CacheJob, Entry, FillReport, TensorCache, component_fingerprint, fill
from foretune.data.encoded import EncodedLookup, EncodedSet
from foretune.data.jobs import EncodedSamples, ImageRequest, latent_jobs, load_images, text_jobs
from foretune.data.lookup import MOMENTS, Lookup
from foretune.data.maker import BatchMaker
from foretune.models.family import Conditioning
from foretune.models.tiling import tile_autoencoder
from foretune.models.trainable import TrainableFamily
from foretune.step.quantizing import quantize_encoder
from foretune.training.not_finite import NotFinite, first_not_finite
from foretune.training.ranks import Ranks

P = TypeVar("P")
Progress = Callable[[str, int, int], None]

# Up to here every entry is read and checked before training; more would take longer than it is worth, and a damaged
# entry is then found when it is needed.
_MOST_VERIFIED_ENTRIES = 50_000
# Autoencoders overflow in half precision; there is no gain that would be worth it.
VAE_DTYPE = torch.float32


@dataclass(frozen=True, kw_only=True)
class EncoderPlan:
    """Which encoders there are, where, and how they are used."""

    family: TrainableFamily
    folder: Path
    device: torch.device
    text_dtype: torch.dtype
    num_text_tokens: int
    cache_dir: Path
    text_numbers: EncoderNumbers = "none"
    """What the text encoders are put into once they are loaded."""
    vae_tiling: bool = False
    """Whether images go through the autoencoder in tiles."""
    encoded: EncodedSet | None = None
    """What was encoded before, in place of the caches."""

    def latent_lookup(self) -> Lookup:
        fingerprint = component_fingerprint(self.folder / "vae", self.cache_dir)
        # Latents that were encoded in tiles are not those of whole images.
        tiles = f" tiles of {TILE_PX} px" if self.vae_tiling else ""
        first_frame = ""
        if self.family.takes_first_frame:
            parts = [component_fingerprint(self.folder / part, self.cache_dir) for part in self.family.image_parts]
            first_frame = " ".join([" first frame", *parts, *([str(self.text_dtype)] if parts else [])])
        return self._lookup(f"{fingerprint} {VAE_DTYPE}{tiles}{first_frame}")

    def text_lookup(self) -> Lookup:
        parts = [component_fingerprint(self.folder / part, self.cache_dir) for part in self.family.text_parts]
        settings = f"{self.family.name} {self.text_dtype} {self.num_text_tokens}"
        if self.text_numbers != "none":
            settings += f" {self.text_numbers}"
        if of_family := self.family.text_settings(self.folder):
            settings += f" {of_family}"
        return self._lookup(" ".join([*parts, settings]))

    def _lookup(self, encoder: str) -> Lookup:
        cache = TensorCache(self.cache_dir)
        return Lookup(cache, encoder) if self.encoded is None else EncodedLookup(cache, encoder, encoded=self.encoded)

    def load_vae(self) -> nn.Module:
        vae = self.family.load_vae(self.folder, VAE_DTYPE).to(self.device)
        if self.vae_tiling:
            tile_autoencoder(vae)
        return vae

    def load_image_encoder(self) -> Any:
        """The encoder of first frames; None for models that have none."""
        return self.family.load_image_encoder(self.folder, self.text_dtype, self.device)

    def load_text(self) -> Any:
        """A pipeline of text encoders."""
        return load_text_encoders(self.family, self.folder, self.text_dtype, self.text_numbers, self.device)

    def fill_latents(
        self, maker: EncodedSamples, train: Sequence[int], held_out: Sequence[int], progress: Progress
    ) -> FillReport:
        """Encodes the images that are not in the cache yet; the autoencoder is loaded only if there are any."""
        assert maker.latents is not None
        loaded: list[Any] = []

        def encode(jobs: Sequence[CacheJob[ImageRequest]]) -> list[Entry]:
            if not loaded:
                loaded.extend((self.load_vae(), self.load_image_encoder()))
            images = load_images(maker.source, [job.payload for job in jobs])
            at_once = 1 if self.family.is_video else images_at_once(*images.shape[-2:])
            entries: list[Entry] = []
            for part in images.split(at_once):
                entries += _unbatched(encode_samples(self.family, loaded[0], loaded[1], part.to(self.device)))
            names = (maker.source.name(job.payload.index) for job in jobs)
            _refuse_not_finite(entries, names, "The encoders turn {} into NaN or infinite values.")
            return entries

        # Eight clips in pixels would take gigabytes of host memory.
        at_once, what = (1, "encoding clips") if self.family.is_video else (IN_A_BATCH, "encoding images")
        jobs = latent_jobs(maker, train, held_out)
        report = _fill(maker.latents.cache, jobs, encode, what, progress, at_once)
        if loaded:
            loaded.clear()
            free_memory()
        return report

    def fill_text(
        self,
        maker: EncodedSamples,
        train: Sequence[int],
        held_out: Sequence[int],
        prompts: Sequence[str],
        progress: Progress,
    ) -> FillReport:
        """Encodes the captions and prompts that are not in the cache yet; the encoders are freed afterwards."""
        assert maker.text is not None
        loaded: list[Any] = []

        def encode(jobs: Sequence[CacheJob[str]]) -> list[Entry]:
            if not loaded:
                loaded.append(self.load_text())
            captions = [job.payload for job in jobs]
            entries = encode_captions(self.family, loaded[0], captions, self.num_text_tokens)
            _refuse_not_finite(
                entries,
                map(repr, captions),
                f"The text encoders turn {{}} into embeddings with NaN or infinite values in {self.text_dtype}. "
                f"Try train.precision={'fp32' if self.text_dtype == torch.bfloat16 else 'bf16'}.",
            )
            return entries

        jobs = text_jobs(maker, train, held_out, prompts)
        report = _fill(maker.text.cache, jobs, encode, "encoding captions", progress)
        if loaded:
            loaded.clear()
            free_memory()
        return report


def load_text_encoders(
    family: TrainableFamily, folder: Path, dtype: torch.dtype, numbers: EncoderNumbers, device: torch.device
) -> Any:
    """A pipeline of text encoders on a device. Each is whole on the host before it is quantised, layer by layer."""
    encoders = family.load_text_encoders(folder, dtype)
    if numbers != "none":
        for part in family.text_parts:
            module = getattr(encoders, part)
            if isinstance(module, nn.Module):
                quantize_encoder(numbers, module, device)
    return encoders.to(device)


@dataclass(frozen=True)
class LiveEncoders:
    """Encoders that stay loaded because their results are not cached; None where they are, or where there are none."""

    family: TrainableFamily
    vae: nn.Module | None
    text: Any
    num_text_tokens: int
    image_encoder: Any = None

    @torch.no_grad()
    def ready(self, batch: Batch, device: torch.device) -> Batch:
        """The batch on the device, with everything the step needs encoded."""
        conditioning = (batch.conditioning or {}).items()
        on_host = {name: tensor for name, tensor in conditioning if name in self.family.read_by_host}
        batch = batch.to(device).conditioned(on_host)
        if self.vae is not None:
            assert batch.images is not None, "what is not cached comes as images"
            encoded = encode_samples(self.family, self.vae, self.image_encoder, batch.images)
            batch = replace(batch, moments=encoded.pop(MOMENTS), images=None)
            batch = batch.conditioned(encoded)
        if self.text is not None:
            batch = batch.conditioned(self.family.encode_text(self.text, batch.captions, self.num_text_tokens))
        return batch if batch.framing is None else batch.conditioned(self.family.image_conditioning(batch.framing))


def _fill(
    cache: TensorCache,
    jobs: list[CacheJob[P]],
    encode: Callable[[Sequence[CacheJob[P]]], Sequence[Entry]],
    what: str,
    progress: Progress,
    at_once: int = IN_A_BATCH,
) -> FillReport:
    def encode_alike(missing: Sequence[CacheJob[P]]) -> Sequence[Entry]:
        # Products of another size may round otherwise, and what is missing depends on what was stopped before.
        padding = [missing[-1]] * (at_once - len(missing))
        return encode([*missing, *padding])[: len(missing)]

    return fill(
        cache,
        jobs,
        encode_alike,
        at_once,
        lambda done, total: progress(what, done, total),
        verify=len(jobs) <= _MOST_VERIFIED_ENTRIES,
    )


def _refuse_not_finite(entries: Sequence[Entry], names: Iterable[str], text: str) -> None:
    """Before they are cached: training on them would end with a loss that is not finite, without a name."""
    for name, entry in zip(names, entries, strict=True):
        if first_not_finite(entry.items()) is not None:
            raise NotFinite(text.format(name))


def encode_captions(
    family: TrainableFamily,
    encoders: Any,
    captions: Sequence[str],
    num_text_tokens: int,
) -> list[Conditioning]:
    """Each caption's tensors without a batch dimension, on the CPU."""
    with torch.no_grad():
        stacked = family.encode_text(encoders, captions, num_text_tokens)
    return _unbatched(stacked)


@torch.no_grad()
def encode_samples(family: TrainableFamily, vae: Any, image_encoder: Any, images: Tensor) -> Entry:
    """The moments of latents, and the conditioning on first frames, batch first, on the encoders' device."""
    moments = family.encode_images(vae, images)
    return {MOMENTS: moments, **family.encode_first_frames(vae, image_encoder, images)}


def _unbatched(stacked: Entry) -> list[Entry]:
    """Each sample's tensors without a batch dimension, on the CPU."""
    on_cpu = {name: tensor.cpu() for name, tensor in stacked.items()}
    num_samples = len(next(iter(on_cpu.values())))
    return [{name: tensor[index] for name, tensor in on_cpu.items()} for index in range(num_samples)]


@dataclass(frozen=True)
class Encoding:
    """Fills the caches, or loads the encoders that are used at each step; encodes the validation prompts."""

    plan: EncoderPlan
    maker: BatchMaker
    needed: Sequence[int]
    num_unused: int
    """Images for training that the run ends too early to use, or that are in other buckets."""
    held_out: Sequence[int]
    prompts: Sequence[str]
    observer: Observer
    ranks: Ranks

    def latents(self) -> tuple[nn.Module | None, Any]:
        """The autoencoder and the encoder of first frames, where they are used at each step."""
        if self.maker.latents is None:
            has_latents = self.plan.family.has_latents
            return (self.plan.load_vae(), self.plan.load_image_encoder()) if has_latents else (None, None)
        if self.plan.encoded is not None:
            self.observer.message(
                f"{len(self.plan.encoded):,} encoded samples are read from {self.plan.encoded.place}."
            )
            return None, None
        report = self._filled(
            lambda needed, held_out: self.plan.fill_latents(self.maker, needed, held_out, self.observer.preparing)
        )
        unused = f" This run does not use the other {self.num_unused:,}." if self.num_unused else ""
        what = "Clips" if self.plan.family.is_video else "Images"
        self.observer.message(f"{what}: {report.num_encoded} encoded, {report.num_reused} from the cache.{unused}")
        return None, None

    def text(self) -> tuple[Any, dict[str, Conditioning]]:
        """The text encoders, where they are used at each step, and the encoded prompts."""
        family, lookup = self.plan.family, self.maker.text
        texts = tuple(dict.fromkeys((*self.prompts, ""))) if self.prompts else ()
        if lookup is not None:
            self._fill_text(texts)
            return None, {text: lookup.conditioning(text) for text in texts}
        if not family.text_parts:
            return None, {}
        live = self.plan.load_text()
        encoded = encode_captions(family, live, texts, self.plan.num_text_tokens) if texts else []
        return live, dict(zip(texts, encoded, strict=True))

    def _fill_text(self, prompts: Sequence[str]) -> None:
        encoded = self.plan.encoded
        if encoded is None:
            report = self._filled(
                lambda needed, held_out: self.plan.fill_text(
                    self.maker, needed, held_out, prompts, self.observer.preparing
                )
            )
            self.observer.message(f"Captions: {report.num_encoded} encoded, {report.num_reused} from the cache.")
        elif others := [prompt for prompt in prompts if not encoded.has_prompt(prompt)]:
            # Of another experiment than the one that was encoded. The empty caption is always in the set.
            maker = replace(self.maker, choice=self.maker.choice.model_copy(update={"caption_dropout": 0.0}))
            report = self._filled(
                lambda _needed, _held_out: self.plan.fill_text(maker, (), (), others, self.observer.preparing)
            )
            self.observer.message(f"Prompts: {report.num_encoded} encoded, {report.num_reused} from the cache.")

    def _filled(self, fill: Callable[[Sequence[int], Sequence[int]], FillReport]) -> FillReport:
        """Each process encodes its share. Then all look for everything: on a disk that is not shared between nodes,
        each node encodes what the others have.
        """
        ranks = self.ranks
        report = fill(self.needed[ranks.rank :: ranks.size], self.held_out[ranks.rank :: ranks.size])
        if ranks.size == 1:
            return report
        ranks.wait()
        if ranks.local_rank == 0:
            rest = fill(self.needed, self.held_out)
            report = FillReport(
                num_encoded=report.num_encoded + rest.num_encoded, num_reused=rest.num_reused - report.num_encoded
            )
        ranks.wait()
        return report
