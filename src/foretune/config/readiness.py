"""What an experiment needs on this machine before it can start: its folders, and the packages of its trackers."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal

from foretune.choices.adapter import resolve_adapter
from foretune.choices.addresses import is_remote
from foretune.choices.data import FolderData, HuggingFaceData, ShapesData, ShardsData
from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter, Method
from foretune.core.errors import MissingExtra, UserError
from foretune.core.extras import is_installed
from foretune.core.trackers import TRACKER_SPECS

Need = Literal["data", "adapters", "trackers"]
TO_TRAIN: tuple[Need, ...] = ("data", "adapters", "trackers")
TO_ENCODE: tuple[Need, ...] = ("data",)


def missing_here(experiment: Experiment, needs: Collection[Need]) -> Iterator[tuple[str, str]]:
    """The section and the sentence of each thing that is needed and not there."""
    if "data" in needs:
        yield from (("data", text) for text in _missing_data(experiment))
    if "adapters" in needs:
        asked = adapters_read(experiment.method)
        yield from (("method", no_adapter(key, Path(name))) for key, name in asked.items() if not names_adapter(name))
    if "trackers" in needs and (error := missing_trackers(experiment.track)) is not None:
        yield "track", str(error)


def adapters_read(method: Method) -> dict[str, str]:
    """The adapters that an experiment reads, by the key that names them: folders, files, or on the Hub."""
    keys = ("start_from", "training_adapter") if isinstance(method, Adapter) else ()
    return {key: asked for key in keys if (asked := getattr(method, key)) is not None}


def adapter_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob("*.safetensors"))


def no_adapter(key: str, folder: Path) -> str:
    return (
        f"method.{key}: {folder} is neither a repository of the Hub nor a folder with an adapter in it (looked for "
        f"{folder.expanduser().absolute() / '*.safetensors'}). To write one: foretune export RUN --output {folder}"
    )


def names_adapter(adapter: str) -> bool:
    """Whether an adapter is here, or its name is that of a repository."""
    try:
        reference = resolve_adapter(adapter)
    except UserError:
        return False
    return reference.path is None or bool(adapter_files(reference.path))


def missing_trackers(names: Iterable[str]) -> MissingExtra | None:
    """The error for trackers whose packages are not installed; None if all are. Nothing is imported."""
    absent = [name for name in names if TRACKER_SPECS[name].packages and not is_installed(name)]
    return MissingExtra(f"track: [{', '.join(absent)}]", ",".join(absent)) if absent else None


def _missing_data(experiment: Experiment) -> Iterator[str]:
    data = experiment.data
    places: dict[str, str]
    if data.encoded is not None:
        if is_remote(data.encoded) and not is_installed("stream"):
            yield str(MissingExtra(f"data.encoded: {data.encoded}", "stream"))
        places = {} if is_remote(data.encoded) else {"data.encoded": data.encoded}
    elif isinstance(data, FolderData):
        places = {f"data.folders.{number}.path": folder.path for number, folder in enumerate(data.folders)}
        if data.path is not None:
            places["data.path"] = data.path
    else:
        places = {} if isinstance(data, ShapesData) or is_remote(data.path) else {"data.path": data.path}
    for key, path in places.items():
        if not Path(path).expanduser().exists():
            yield f"{key}: there is no folder {path} (looked for {Path(path).expanduser().absolute()})."
    if data.encoded is not None:
        return
    if isinstance(data, HuggingFaceData) and not is_installed("datasets"):
        yield str(MissingExtra("data.kind: huggingface", "datasets"))
    if isinstance(data, ShardsData) and is_remote(data.path) and not is_installed("stream"):
        yield str(MissingExtra(f"data.path: {data.path}", "stream"))
