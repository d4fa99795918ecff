"""Where the training images and clips come from, and how they are cut to size."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from foretune.choices.addresses import checked_place
from foretune.choices.picture_size import checked_resolution
from foretune.choices.section import INCIDENTAL, LATER, Section

# Where the data are is incidental; what they are is in their fingerprint.
Place = Annotated[str, INCIDENTAL]
Share = Annotated[float, Field(ge=0, le=1)]
ShapesStyle = Literal["plain", "hollow", "halved", "framed"]
ShapesCaptions = Literal["all", "seen", "unseen"]
CaptionPlace = Literal["files", "filename"]
ShapesPlacement = Literal["anywhere", "middle"]


class _Images(Section):
    """What every source shares."""

    resolution: Annotated[int | str | None, BeforeValidator(checked_resolution)] = None
    """Target size in pixels, from 8 to 8192: `512` for squares, `416x240` or `"416,240"` for a width and a height.
    Images are resized and cropped to about so many pixels. For a video model one number is the shorter side, with its
    own aspect ratio. Left out: the model's."""
    num_frames: Annotated[int | None, LATER] = Field(default=None, ge=1, le=4096)
    """Frames of a clip, for video models; 1 trains on images. Left out: the model's (81 for Wan 2.1)."""
    cache_dir: Place = "./cache"
    """Folder in which encoded latents and captions are cached between runs."""
    encoded: Annotated[Annotated[str, AfterValidator(checked_place)] | None, INCIDENTAL, LATER] = None
    """Folder or address of the encoded set that `foretune data encode` made of these data: training reads it in place
    of the images and of the caches. The other keys stay as they were when it was encoded."""
    max_buckets: int = Field(default=1, ge=1, le=64)
    """Maximum number of buckets of aspect ratios and lengths; 1 crops everything to `resolution` and `num_frames`."""
    bucket_step_px: int = Field(default=64, ge=8, le=512)
    """Bucket sides are multiples of this many pixels."""
    only_largest_bucket: Annotated[bool, LATER] = False
    """Train on the samples of the largest bucket only, whose steps take most memory and time. `--rehearse` sets it."""
    crop: Literal["center", "random"] = "center"
    """Center or random crop of an image that does not have its bucket's shape."""
    flip: Share = 0.0
    """Probability of a horizontal flip."""
    caption_dropout: Share = 0.0
    """Probability that a sample is trained without its caption."""
    max_text_tokens: int | None = Field(default=None, ge=8, le=4096)
    """Maximum caption length, in tokens of the large text encoder. Left out: the model's (512 for FLUX)."""
    held_out: Share = 0.05
    """Share of the samples held out of training, for the held-out loss."""
    num_workers: Annotated[int, INCIDENTAL] = Field(default=0, ge=0, le=128)
    """Data loader processes; 0 loads in the training process. Results do not depend on it."""


class _Files(_Images):
    """What sources share that read files."""

    follow_links: Annotated[bool, INCIDENTAL, LATER] = False
    """Also read files outside of the data folder, where a symbolic link or a row of a dataset leads to one."""


class Folder(Section):
    """One of several folders, with its own repeats and trigger word."""

    path: Place
    """Folder of the images."""
    repeats: int = Field(default=1, ge=1, le=10_000)
    """How many times each image of this folder occurs per epoch."""
    trigger: str | None = None
    """Trigger word, put before each caption of this folder."""


class FolderData(_Files):
    """Images with captions: `name.txt` beside `name.png`, or a `metadata.jsonl`."""

    kind: Literal["folder"]
    path: Annotated[str | None, INCIDENTAL] = None
    """Folder of the images."""
    repeats: int = Field(default=1, ge=1, le=10_000)
    """How many times each image occurs per epoch."""
    trigger: str | None = None
    """Trigger word, put before each caption."""
    captions: Annotated[CaptionPlace, LATER] = "files"
    """Where captions are: in files beside the images (files), or the names of the images themselves, with spaces in
    place of underscores (filename)."""
    folders: tuple[Folder, ...] = ()
    """Several folders instead of `path`, each with its own repeats and trigger."""

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


class Cifar10Data(_Files):
    """CIFAR-10: `cifar-10/train/1.png` with an optional `trainLabels.csv`, or the batches of the Python version."""

    kind: Literal["cifar10"]
    path: Place
    """Folder that contains train/ or data_batch_1."""


class HuggingFaceData(_Files):
    """A local Hugging Face dataset: a `save_to_disk` folder, or a folder of Parquet files."""

    kind: Literal["huggingface"]
    path: Place
    """Folder of the dataset."""
    split: str = "train"
    """Split to train on."""
    image_column: str = "image"
    """Column of the images."""
    caption_column: str | None = "text"
    """Column of the captions; null trains without captions."""
    where: Annotated[str | None, LATER] = Field(default=None, pattern=r"^[^=]+=.+$")
    """Read only the rows with this value in a column, such as `artist=john-singer-sargent`; a class label by its name
    or its number."""
    trigger: str | None = None
    """Trigger word, put before each caption."""


class ClipsData(_Files):
    """Clips with captions: video files, or folders of frames. `name.txt` stands beside `name.mp4` or the folder `name`;
    or a `metadata.jsonl` holds the captions.
    """

    kind: Literal["clips"]
    path: Place
    """Folder of the clips."""
    fps: float | None = Field(default=None, gt=0, le=1000)
    """Frames per second to take from video files; left out, every frame is taken. Folders of frames have no frame rate,
    so that every frame is taken."""
    repeats: int = Field(default=1, ge=1, le=10_000)
    """How many times each clip occurs per epoch."""
    trigger: str | None = None
    """Trigger word, put before each caption."""


class ShardsData(_Images):
    """A packed set of WebDataset shards, in a folder or at an address; `foretune data pack` makes it."""

    kind: Literal["shards"]
    path: Annotated[str, AfterValidator(checked_place), INCIDENTAL]
    """Folder of the set, or its address: `https://HOST/SET` or `s3://BUCKET/SET`. Credentials and endpoints come from
    the environment or the usual files, such as AWS_PROFILE, AWS_ENDPOINT_URL or `~/.aws`."""
    trigger: str | None = None
    """Trigger word, put before each caption."""
    fps: float | None = Field(default=None, gt=0, le=1000)
    """Frames per second to take from clips; left out, every frame is taken."""
    shuffle_shards: int = Field(default=16, ge=1, le=65536)
    """Number of shards whose samples are shuffled together. In each epoch, all shards are shuffled, taken in groups of
    this size, and the samples of a group are shuffled."""
    shard_cache_gib: Annotated[float, INCIDENTAL] = Field(default=32.0, ge=0, le=2**20)
    """Size limit of the local cache of shards from an address, in GiB; the oldest shards are removed. 0 reads each
    sample by itself, which suits many machines: each sample is then transferred once, not once per machine."""


class ShapesData(_Images):
    """Generated captioned images ("a small red circle on blue"), or clips in which the shapes move: no files, no
    downloads.
    """

    kind: Literal["shapes"]
    num_samples: int = Field(default=1024, ge=2, le=1_000_000_000)
    """Number of different images, including held-out ones."""
    style: Annotated[ShapesStyle, LATER] = "plain"
    """How shapes are drawn: plain (filled), hollow (with a hole), halved (only the left half), framed (filled, with a
    frame around the image). Captions do not name the style, so it has to be learnt."""
    captions: Annotated[ShapesCaptions, LATER] = "all"
    """Which of the 672 captions are used: all, all but a fixed tenth (seen), or only that tenth (unseen)."""
    placement: Annotated[ShapesPlacement, LATER] = "anywhere"
    """Position of shapes: anywhere, or within a sixteenth of the image side from the middle, which a small model learns
    much sooner."""


Data = Annotated[
    FolderData | Cifar10Data | HuggingFaceData | ClipsData | ShardsData | ShapesData, Field(discriminator="kind")
]
