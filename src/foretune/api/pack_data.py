"""`pack_data`, `index_data`, `check_data`: data as shards that are streamed."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.core.errors import UserError
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.choices.data import Data
    from foretune.data.shards.checking import CheckedSet
    from foretune.data.shards.indexing import IndexedSet
    from foretune.data.shards.packing import PackedSet

_MIB = 2**20
_EXPERIMENTS = (".yaml", ".yml")
_USUAL_PX = 512
PACKED_KINDS = ("folder", "clips", "cifar10", "huggingface")


def pack_data(
    source: str | Path,
    output: str | Path,
    *,
    kind: str = "folder",
    shard_mib: float = 256,
    shard_samples: int = 10_000,
    shuffled: bool = True,
    cache_dir: str | Path = "./cache",
    observer: Observer | None = None,
) -> "PackedSet":
    """Packs images or clips with their captions into WebDataset shards with an index.

    Interrupted, it continues where it stopped when it is started again with the same arguments.

    Args:
        source: a folder, or an experiment file, whose `data` are packed.
        output: a folder or an s3:// address, which must be empty.
        kind: how the folder is read, as `data.kind`.
        shard_mib: size of a shard at most, in MiB.
        shard_samples: samples of a shard at most.
        shuffled: shuffle the samples once, so that each shard is a fair part of the whole.
        cache_dir: where sizes and hashes of files are cached.
        observer: receives progress.

    Raises:
        UserError: the source cannot be read, or the output is not empty.
    """
    from foretune.choices.addresses import is_remote, remote_protocol
    from foretune.core.output_files import require_writable
    from foretune.data.buckets import Bucket
    from foretune.data.shards.packing import PackableSource, pack
    from foretune.data.shards.stores import open_store
    from foretune.data.shards.writer import ShardLimits
    from foretune.data.sources import open_source

    place = _checked(output)
    if is_remote(place) and remote_protocol(place) != "s3":
        raise UserError(f"{place} can only be read. Choose a folder, or an s3:// address.")
    if not is_remote(place):
        require_writable(Path(place))
    observer = observer or Observer()
    choice = _choice(source, kind, cache_dir)
    if choice.kind == "shards":
        raise UserError(f"{source} is a packed set already.")
    width_px, height_px = _sides(choice.resolution)
    opened = open_source(choice, largest=Bucket(width_px, height_px))
    for note in opened.notes():
        observer.warning(note)
    if any(opened.repeats(number) > 1 for number in range(0 if opened.is_generated else len(opened))):
        observer.warning("Repeats are not packed: each sample is in the set once.")
    return pack(
        PackableSource(opened),
        open_store(place),
        holds="clips" if choice.kind == "clips" else "images",
        source_name=f"{choice.kind} {source}",
        limits=ShardLimits(max_bytes=round(shard_mib * _MIB), max_samples=shard_samples),
        shuffled=shuffled,
        on_progress=_progress(observer, "packing"),
    )


def index_data(folder: str | Path, *, observer: Observer | None = None) -> "IndexedSet":
    """Indexes tars that webdataset, img2dataset or tar wrote, so that they can be trained on where they are.

    Args:
        folder: the folder of the tars. Images need a caption in `.txt` or in `.json` (caption or text).
        observer: receives progress.

    Raises:
        UserError: there is no tar, or one is damaged.
    """
    from foretune.data.shards.indexing import index_tars

    return index_tars(Path(folder), _progress(observer or Observer(), "indexing shards"))


def check_data(place: str | Path, *, observer: Observer | None = None) -> "CheckedSet":
    """Reads all files of a packed set and compares them with their checksums; all faults are reported.

    Args:
        place: the folder or address of the set.
        observer: receives progress.

    Raises:
        UserError: the set has no manifest.
    """
    from foretune.data.shards.checking import check
    from foretune.data.shards.reader import open_set

    return check(open_set(_checked(place)), _progress(observer or Observer(), "checking shards"))


def _checked(place: str | Path) -> str:
    from foretune.choices.addresses import checked_place

    try:
        return checked_place(str(place))
    except ValueError as error:
        raise UserError(f"The place of the set {error}.") from error


def _choice(source: str | Path, kind: str, cache_dir: str | Path) -> "Data":
    from pydantic import TypeAdapter

    from foretune.choices.data import Data
    from foretune.config.reading import read_experiment

    if Path(source).suffix in _EXPERIMENTS:
        return read_experiment(Path(source)).experiment.data
    adapter: TypeAdapter[Data] = TypeAdapter(Data)
    return adapter.validate_python({"kind": kind, "path": str(source), "cache_dir": str(cache_dir)})


def _sides(resolution: int | str | None) -> tuple[int, int]:
    from foretune.choices.picture_size import sides_px

    height_px, width_px = sides_px(resolution, (_USUAL_PX, _USUAL_PX), 1, is_video=False)
    return width_px, height_px


def _progress(observer: Observer, what: str) -> Callable[[int, int], None]:
    return lambda done, total: observer.preparing(what, done, total)
