"""`fetch`: a model or data set is downloaded before the hardware is rented."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretune import catalog
from foretune.api.start import Changes, ExperimentLike, overrides_of
from foretune.core.errors import Refused
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.hub.download_plan import DownloadPlan, FreeBytes
from foretune.hub.surroundings import free_bytes as free_bytes_of
from foretune.hub.surroundings import has_stored_token, token_variable

if TYPE_CHECKING:
    from foretune.catalog import Dataset
    from foretune.choices.model import ModelReference
    from foretune.hub.repository import RemoteFile, Repository

BENCHMARK = ("flux.1-dev", "sdxl-unet", "mochi-1", "hunyuanvideo", "wan2.1-i2v-14b", "pseudo-camera-10k")
"""Models and data of the public AMD diffusion benchmark, by their names in the catalogue."""
_MB = 10**6


@dataclass(frozen=True)
class Fetched:
    """A model or data set in huggingface_hub's cache, or on its way there."""

    plan: DownloadPlan | None
    """What was or would be downloaded; None for a model that is a folder already."""
    folder: Path | None
    """Where the model is; None after a dry run."""
    num_verified: int = 0
    """Files whose hash is the one that the Hub lists."""
    num_files: int = 0
    is_one_of_several: bool = False
    """Its disk is not judged by itself: others go there, too."""

    def __str__(self) -> str:
        """What `foretune fetch` prints."""
        from foretune.reports.terminal.fetch import fetched_lines

        with_disk = not self.is_one_of_several
        return "\n".join(fetched_lines(self.plan, self.folder, self.num_verified, self.num_files, with_disk=with_disk))


@dataclass(frozen=True)
class DownloadTotal:
    """Several downloads together."""

    downloads: "Sequence[Fetched]"

    def __str__(self) -> str:
        """Size, share in the cache, and free space: the end of `foretune fetch --benchmark --dry-run`."""
        from foretune.reports.terminal.fetch import total_lines

        return "\n".join(total_lines([each.plan for each in self.downloads if each.plan is not None]))


def fetch(
    target: ExperimentLike,
    changes: Changes | None = None,
    *,
    dry_run: bool = False,
    free_bytes: FreeBytes | None = None,
    observer: Observer | None = None,
) -> Fetched:
    """Downloads what a training of a model needs, and compares every file with the hash that the Hub lists.

    Args:
        target: a model (`"flux.1-dev"`), a data set of the catalogue (`"pseudo-camera-10k"`), an experiment file, or
            its content as a mapping.
        changes: settings by dotted key.
        dry_run: report what would be downloaded, by the catalogue alone and without a network.
        free_bytes: tells the free space of the disk that a folder is on; the operating system, if left out.
        observer: receives what will be downloaded, then progress.

    Raises:
        Refused: the disk has no room, or the model cannot be trained.
        UserError: the Hub refuses access, or cannot be reached; a file was damaged twice.
    """
    observer, free_bytes = observer or Observer(), free_bytes or free_bytes_of
    if isinstance(target, str) and target in catalog.datasets():
        return _fetched_dataset(catalog.datasets()[target], free_bytes, observer, is_dry=dry_run)
    model = _model_of(target, overrides_of(changes))
    if model.folder is not None:
        return Fetched(None, model.folder)
    if dry_run:
        return Fetched(_planned(model, free_bytes), None)
    require("hub", "Downloading a model")
    return _download(model, free_bytes, observer)


def fetch_benchmark(
    *,
    dry_run: bool = False,
    free_bytes: FreeBytes | None = None,
    observer: Observer | None = None,
) -> "Iterator[Fetched]":
    """Downloads the five models and the data of the public AMD diffusion benchmark, one after the other.

    Before the first download their total is compared with the free space.

    Args:
        dry_run: as for `fetch`.
        free_bytes: as for `fetch`.
        observer: as for `fetch`.

    Raises:
        Refused: the disk has no room for all of them.
    """
    planned = [fetch(name, dry_run=True, free_bytes=free_bytes) for name in BENCHMARK]
    if dry_run:
        yield from (replace(each, is_one_of_several=True) for each in planned)
        return
    from foretune.hub.download_plan import refuse_full_disk

    (observer or Observer()).message(str(DownloadTotal(planned)))
    refuse_full_disk(*(each.plan for each in planned if each.plan is not None))
    for name in BENCHMARK:
        yield fetch(name, free_bytes=free_bytes, observer=observer)


def has_token() -> bool:
    """Whether a token of the Hub is set or stored."""
    return token_variable() is not None or has_stored_token()


def _fetched_dataset(row: "Dataset", free_bytes: FreeBytes, observer: Observer, *, is_dry: bool) -> Fetched:
    from foretune.hub.download_plan import plan_of_dataset

    if is_dry:
        return Fetched(plan_of_dataset(row.name, row.hub_repo, free_bytes), None)
    require("hub", "Downloading a data set")
    from foretune.hub.model_page import licence_of
    from foretune.hub.needed import explain_download_failures
    from foretune.hub.repository import open_dataset_repository
    from foretune.hub.selection import data_files

    with explain_download_failures(row.hub_repo):
        repository = open_dataset_repository(row.hub_repo)
        names = set(data_files(file.path for file in repository.files))
        files = tuple(file for file in repository.files if file.path in names)
        if not files:
            raise Refused(f"{row.hub_repo} holds no images, captions or Parquet files, which training needs.")
        licence = licence_of(row.hub_repo, "dataset")
        plan = plan_of_dataset(row.name, row.hub_repo, free_bytes, repository, files, licence)
        return _transferred(plan, repository, files, observer)


def _model_of(target: ExperimentLike, overrides: tuple[str, ...]) -> "ModelReference":
    from foretune.planner.asking import PlanRequest, asked_of

    request = PlanRequest(target=target if isinstance(target, Mapping) else str(target), overrides=overrides)
    return asked_of(request).model


def _planned(model: "ModelReference", free_bytes: FreeBytes) -> DownloadPlan:
    from foretune.hub.download_plan import plan_from_catalogue

    if all(row.hub_repo != model.repo for row in catalog.denoisers().values()):
        raise Refused(
            f"{model.asked} is not in the catalogue, and a dry run asks nobody else. Run: foretune fetch "
            f"{model.asked}, which reports the size before it downloads, or: foretune list models"
        )
    return plan_from_catalogue(model, free_bytes)


def _download(model: "ModelReference", free_bytes: FreeBytes, observer: Observer) -> Fetched:
    from foretune.hub.download_plan import plan_from_hub
    from foretune.hub.model_page import licence_of
    from foretune.hub.needed import explain_download_failures, find_needed_files

    assert model.repo is not None, "only folders have no repository"
    repository, files = find_needed_files(model.repo, model.revision)
    with explain_download_failures(model.repo):
        plan = plan_from_hub(model, repository, files, licence_of(model.repo), free_bytes)
        return _transferred(plan, repository, files, observer)


def _transferred(
    plan: DownloadPlan, repository: "Repository", files: "Sequence[RemoteFile]", observer: Observer
) -> Fetched:
    """Reports the plan, refuses a full disk, downloads and verifies."""
    from foretune.hub.download_plan import refuse_full_disk
    from foretune.hub.transfer import download
    from foretune.hub.verifying import verified
    from foretune.reports.terminal.fetch import download_lines

    observer.message("\n".join(download_lines(plan)))
    refuse_full_disk(plan)
    download(repository, files, lambda done, total: observer.preparing("downloading MB", done // _MB, total // _MB))
    num_verified = verified(
        repository,
        files,
        observer.warning,
        lambda done, total: observer.preparing("verifying MB", done // _MB, total // _MB),
    )
    return Fetched(plan, repository.folder, num_verified, len(files))
