"""The data of an evaluation: held-out images with captions, and the training images to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from foretune.choices.experiment import Experiment
from foretune.core.draws import Permutation
from foretune.core.observer import Observer
from foretune.data.batch import framing
from foretune.data.buckets import Bucket
from foretune.data.held_out import HeldOutBatches, held_out_batches, held_out_plan
from foretune.data.maker import BatchMaker
from foretune.data.order import Order
from foretune.data.sources import Source, open_source, scan
from foretune.data.sources.base import SampleInfo
from foretune.data.sources.shapes import captions_shown
from foretune.data.split import split
from foretune.data.transforms import cut_sample
from foretune.models.family import Family
from foretune.training.sampling import Pixels

NUM_BANDS = 5
"""Number of bands of noise levels, each drawn equally often in training, for which the held-out loss is reported."""
MOST_TRAINING_IMAGES = 4096
"""Maximum number of training images used, evenly spaced; memorisation and distances then report it."""
_MOST_CLIP_BYTES = 4_000_000_000
_FEWEST_CLIPS = 3


@dataclass(frozen=True)
class EvaluationData:
    """Images of an experiment's data at the evaluation's size, cropped around the centre."""

    experiment: Experiment
    family: Family
    source: Source
    train: Sequence[int]
    held_out: Sequence[int]
    size: Bucket

    @classmethod
    def open(
        cls, experiment: Experiment, family: Family, size: Bucket, num_held_out: int, observer: Observer
    ) -> "EvaluationData":
        source = open_source(experiment.data, largest=size)
        scan(source, lambda done, total: observer.preparing("reading images", done, total))
        train, held_out = (
            part
            if size.num_frames is None
            else tuple(index for index in part if is_long_enough(source.info(index), size))
            for part in split(source, experiment.data.held_out)
        )
        return cls(experiment, family, source, train, tuple(held_out[:num_held_out]), size)

    @property
    def is_shapes(self) -> bool:
        """Whether the data are drawn shapes, which can be read from the pixels."""
        return self.experiment.data.kind == "shapes"

    @property
    def style(self) -> str | None:
        """The style of the training shapes; None for other data, and for plain shapes."""
        data = self.experiment.data
        return data.style if data.kind == "shapes" and data.style != "plain" else None

    @cached_property
    def captions(self) -> tuple[str, ...]:
        """Captions of the held-out images."""
        return tuple(self.source.info(index).caption for index in self.held_out)

    @cached_property
    def held_out_images(self) -> list[Pixels]:
        return self._images(self.held_out)

    @cached_property
    def framing(self) -> torch.Tensor:
        """How each held-out image is cut, as in `Batch.framing`."""
        bucket, infos = self.size, [self.source.info(index) for index in self.held_out]
        return torch.stack([framing(info, held_out_plan(info, bucket), bucket) for info in infos])

    @cached_property
    def training_images(self) -> list[Pixels]:
        """All training images, or an even selection, without duplicates."""
        num, most = len(self.train), self._most_in_memory()
        places = range(num) if num <= most else (place * num // most for place in range(most))
        unique = {self.source.info(self.train[place]).fingerprint: self.train[place] for place in places}
        return self._images(tuple(unique.values()))

    def prompts(self, most: int) -> tuple[str, ...]:
        """Returns captions that were not trained on: unseen combinations of shapes, else those of held-out images."""
        if self.is_shapes:
            unseen = captions_shown("unseen")
            shuffled = Permutation(len(unseen), 0)
            return tuple(unseen[shuffled[place]] for place in range(min(most, len(unseen))))
        trained = (self.source.info(index).caption for index in self.held_out)
        return tuple(dict.fromkeys(caption for caption in trained if caption.strip()))[:most]

    def batches(self, batch_size: int) -> HeldOutBatches:
        """Returns each held-out image at one fixed noise in each band, image by image; not encoded yet."""
        maker = BatchMaker(
            source=self.source,
            order=Order((self.train,), 1, 0),
            buckets=(self.size,),
            choice=self.experiment.data,
            seed=self.experiment.validation.seed,
            batch_size=1,
            latent_shape=self.family.latent_shape,
            has_autoencoder=self.family.has_latents,
        )
        return held_out_batches(maker, self.held_out, num_repeats=NUM_BANDS, batch_size=batch_size)

    def _most_in_memory(self) -> int:
        """Returns how many samples are held at once; of clips, what fits into a few GB."""
        if self.size.num_frames is None:
            return MOST_TRAINING_IMAGES
        return max(_FEWEST_CLIPS, min(MOST_TRAINING_IMAGES, _MOST_CLIP_BYTES // (self.size.num_pixels * 3 * 4)))

    def _images(self, indices: Sequence[int]) -> list[Pixels]:
        plans = ((index, held_out_plan(self.source.info(index), self.size)) for index in indices)
        cut = (cut_sample(self.source, index, plan, self.size) for index, plan in plans)
        return [((image + 1) / 2).clamp(0, 1).movedim(0, -1).numpy() for image in cut]


def is_long_enough(info: SampleInfo, size: Bucket) -> bool:
    """Whether a sample has the frames of that size; an image always has."""
    return size.num_frames is None or info.num_frames >= size.num_frames


def in_pieces(images: Sequence[Pixels], at_once: int) -> list[torch.Tensor]:
    """Returns images as batches (N, 3, H, W), or clips (N, 3, F, H, W), in [-1, 1]."""
    tensors = [torch.from_numpy(image).movedim(-1, 0) * 2 - 1 for image in images]
    return [torch.stack(tensors[start : start + at_once]) for start in range(0, len(tensors), at_once)]
