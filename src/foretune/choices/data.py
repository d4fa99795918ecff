"""Where the training images come from, and how they are cut to size."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from foretune.choices.section import INCIDENTAL, LATER, Section

# Where the data are is incidental; what they are is in their fingerprint.
Place = Annotated[str, INCIDENTAL]
Share = Annotated[float, Field(ge=0, le=1)]
ShapesStyle = Literal["plain", "hollow", "halved", "framed"]
ShapesCaptions = Literal["all", "seen", "unseen"]
ShapesPlacement = Literal["anywhere", "middle"]


class _Images(Section):
    """What every source of images shares."""

    resolution: int | None = Field(default=None, ge=8, le=8192)
    """Target size in pixels: images are cut to about resolution x resolution. Left out: the model's own."""
    cache_dir: Place = "./cache"
    """Where encoded latents and captions are kept between runs."""
    max_buckets: int = Field(default=1, ge=1, le=64)
    """Most image shapes there may be; 1 cuts everything square, more keeps aspect ratios."""
    bucket_step_px: int = Field(default=64, ge=8, le=512)
    """Sides of a bucket are multiples of this many pixels."""
    crop: Literal["center", "random"] = "center"
    """What is cut away when an image does not have its bucket's shape."""
    flip: Share = 0.0
    """Chance that an image is mirrored."""
    caption_dropout: Share = 0.0
    """Chance that a sample is trained without its caption."""
    max_text_tokens: int | None = Field(default=None, ge=8, le=4096)
    """Most tokens of a caption the large text encoder sees. Left out: the model's own (512 for FLUX)."""
    held_out: Share = 0.05
    """Share of the samples that is kept out of training, for the held-out loss."""
    num_workers: Annotated[int, INCIDENTAL] = Field(default=0, ge=0, le=128)
    """Processes that prepare batches; 0 prepares them in the training process. Results do not depend on it."""


class Folder(Section):
    """One folder of images with its own weight and trigger word."""

    path: Place
    """Where the images are."""
    repeats: int = Field(default=1, ge=1, le=10_000)
    """How many times an epoch sees each image of this folder."""
    trigger: str | None = None
    """A word put before each caption of this folder."""


class FolderData(_Images):
    """Images with captions: `name.txt` beside `name.png`, or a `metadata.jsonl`."""

    kind: Literal["folder"]
    path: Annotated[str | None, INCIDENTAL] = None
    """Where the images are."""
    repeats: int = Field(default=1, ge=1, le=10_000)
    """How many times an epoch sees each image."""
    trigger: str | None = None
    """A word put before each caption."""
    folders: tuple[Folder, ...] = ()
    """Several folders, each with repeats and trigger of its own, instead of `path`."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.path is None and not self.folders:
            raise ValueError("needs path (one folder) or folders (several)")
        if self.path is not None and self.folders:
            raise ValueError("has both path and folders; put the path into folders, or take one of them away")
        if self.folders and (self.repeats != 1 or self.trigger is not None):
            raise ValueError("has repeats or trigger beside folders; put them into each of the folders")
        return self

    def all_folders(self) -> tuple[Folder, ...]:
        if self.path is None:
            return self.folders
        return (Folder(path=self.path, repeats=self.repeats, trigger=self.trigger),)


class Cifar10Data(_Images):
    """CIFAR-10: `cifar-10/train/1.png` with `trainLabels.csv` beside it or not, or the python version's batches."""

    kind: Literal["cifar10"]
    path: Place
    """The folder that holds train/ or data_batch_1."""


class HuggingFaceData(_Images):
    """A Hugging Face dataset on this disk: a `save_to_disk` folder, or a folder of Parquet files."""

    kind: Literal["huggingface"]
    path: Place
    """The dataset's folder."""
    split: str = "train"
    """Which split of it is trained on."""
    image_column: str = "image"
    """The column with the images."""
    caption_column: str | None = "text"
    """The column with the captions; null trains without."""
    trigger: str | None = None
    """A word put before each caption."""


class ShapesData(_Images):
    """Generated captioned images ("a small red circle on blue"): no files, no downloads."""

    kind: Literal["shapes"]
    num_samples: int = Field(default=1024, ge=2, le=1_000_000_000)
    """How many different images there are, the held-out ones included."""
    style: Annotated[ShapesStyle, LATER] = "plain"
    """How shapes are drawn: filled; with a hole; the left half alone; filled, with a frame around the image. Captions
    do not tell, so that a style has to be learnt."""
    captions: Annotated[ShapesCaptions, LATER] = "all"
    """Which of the 672 captions there are: all, or all but a fixed tenth (seen), or only that tenth (unseen)."""
    placement: Annotated[ShapesPlacement, LATER] = "anywhere"
    """Where shapes stand: anywhere in the image, or within a sixteenth of its side from the middle, which a small model
    learns to draw much sooner."""


Data = Annotated[FolderData | Cifar10Data | HuggingFaceData | ShapesData, Field(discriminator="kind")]
