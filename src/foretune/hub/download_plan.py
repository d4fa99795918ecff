"""What a download would be: files, bytes, licence, access and free space, before the first weight is fetched."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretune import catalog
from foretune.catalog import ModelComponent
from foretune.choices.model import ModelReference
from foretune.core.errors import Refused
from foretune.core.units import disk_text
from foretune.hub.cached import cached_bytes
from foretune.hub.repository import RemoteFile, Repository
from foretune.hub.selection import part_of
from foretune.hub.surroundings import cache_folder, has_stored_token, token_variable

FreeBytes = Callable[[Path], int]
"""Free space of the disk that a folder is on."""
_HALF_BYTES, _FLOAT_BYTES = 2, 4
# A file system that is filled to the last byte is of no use to anybody.
_RESERVE_BYTES = 10**9


@dataclass(frozen=True)
class PipelinePart:
    """One component of a pipeline."""

    name: str
    low_bytes: int | None
    """None where the size is not known."""
    high_bytes: int | None
    """Differs from `low_bytes` in an estimate: weights of 16 bits, and of 32."""
    num_files: int | None = None
    """None in an estimate."""
    note: str | None = None


@dataclass(frozen=True)
class DownloadPlan:
    """What is known of a download before it begins."""

    model: str
    repo: str
    revision: str | None
    """The exact commit; None where only the catalogue was asked, which names none."""
    parts: tuple[PipelinePart, ...]
    licence: str | None
    is_gated: bool | None
    token_variable: str | None
    has_stored_token: bool
    cache: Path
    free_bytes: int
    here_bytes: int
    """What of it the cache has."""
    is_trainable: bool = True
    kind: Literal["model", "dataset"] = "model"

    @property
    def page(self) -> str:
        """Its page on the Hub."""
        return f"https://huggingface.co/{'datasets/' if self.kind == 'dataset' else ''}{self.repo}"

    @property
    def is_estimate(self) -> bool:
        return self.revision is None

    @property
    def low_bytes(self) -> int:
        return sum(part.low_bytes or 0 for part in self.parts)

    @property
    def high_bytes(self) -> int:
        return sum(part.high_bytes or 0 for part in self.parts)

    @property
    def fits(self) -> Literal["yes", "no", "perhaps"]:
        """Whether the disk has room for what is missing. A size that is not known cannot be a reason to say yes."""
        return Room((self,)).fits


@dataclass(frozen=True)
class Room:
    """Several downloads into one cache, and the space on its disk."""

    plans: tuple[DownloadPlan, ...]

    @property
    def free_bytes(self) -> int:
        return self.plans[0].free_bytes

    @property
    def here_bytes(self) -> int:
        return sum(plan.here_bytes for plan in self.plans)

    @property
    def missing_bytes(self) -> int:
        """What is to be downloaded at least. What is in the cache of one model is no room for another."""
        return sum(max(0, plan.low_bytes - plan.here_bytes) for plan in self.plans)

    @property
    def fits(self) -> Literal["yes", "no", "perhaps"]:
        """Whether the disk has room for what is missing. A size that is not known cannot be a reason to say yes."""
        room_bytes = max(0, self.free_bytes - _RESERVE_BYTES)
        if self.missing_bytes > room_bytes:
            return "no"
        is_known = all(part.high_bytes is not None for plan in self.plans for part in plan.parts)
        most_bytes = sum(max(0, plan.high_bytes - plan.here_bytes) for plan in self.plans)
        return "yes" if is_known and most_bytes <= room_bytes else "perhaps"


def refuse_full_disk(*plans: DownloadPlan) -> None:
    """Raises before the first weight if the disk has no room for all of them."""
    room = Room(plans)
    if room.fits == "no":
        needing = f"{plans[0].repo} needs" if len(plans) == 1 else f"These {len(plans)} downloads need"
        raise Refused(
            f"{needing} {disk_text(room.missing_bytes)} more in {plans[0].cache}, where {disk_text(room.free_bytes)} "
            f"are free ({disk_text(_RESERVE_BYTES)} are left alone). Make room, or set HF_HOME to a folder on a larger "
            "disk: export HF_HOME=/large/disk/huggingface"
        )


def plan_from_catalogue(model: ModelReference, free_bytes: FreeBytes) -> DownloadPlan:
    """By the catalogue and the cache, without a network: sizes are parameter counts times 2 and 4 bytes."""
    row = next(row for row in catalog.denoisers().values() if row.hub_repo == model.repo)
    licence = catalog.licences().get(row.hub_repo or "")
    known = None if licence is None else licence.licence
    gated = None if licence is None else licence.is_gated
    parts = tuple(_estimated(row))
    assert model.repo is not None, "a folder is not downloaded"
    here_bytes = cached_bytes(model.repo, "model", model.revision, row.family_facts.denoiser_part)
    return _plan(model, parts, (None, here_bytes), (known, gated), free_bytes, is_trainable=row.is_trainable)


def plan_from_hub(
    model: ModelReference,
    repository: Repository,
    files: Iterable[RemoteFile],
    licence: tuple[str | None, bool | None],
    free_bytes: FreeBytes,
) -> DownloadPlan:
    """By the list of files that the Hub gives for one commit: sizes are exact."""
    by_part: dict[str, list[RemoteFile]] = {}
    for file in files:
        by_part.setdefault(part_of(file.path), []).append(file)
    sizes = {name: sum(file.size_bytes for file in of_part) for name, of_part in by_part.items()}
    parts = tuple(PipelinePart(name, sizes[name], sizes[name], len(of_part)) for name, of_part in by_part.items())
    here = [file for of_part in by_part.values() for file in of_part if repository.is_here(file)]
    here_bytes = sum(file.size_bytes for file in here)
    return _plan(model, parts, (repository.commit, here_bytes), licence, free_bytes, is_trainable=True)


def plan_of_dataset(
    name: str,
    repo: str,
    free_bytes: FreeBytes,
    repository: Repository | None = None,
    files: Iterable[RemoteFile] = (),
    licence: tuple[str | None, bool | None] = (None, None),
) -> DownloadPlan:
    """By the list of files of one commit; without a repository, by the catalogue, which knows no sizes."""
    listed = tuple(files)
    part = PipelinePart("files", None, None, note="size not in the catalogue")
    if repository is None:
        here_bytes = cached_bytes(repo, "dataset", None)
    else:
        size_bytes = sum(file.size_bytes for file in listed)
        part = PipelinePart("files", size_bytes, size_bytes, len(listed))
        here_bytes = sum(file.size_bytes for file in listed if repository.is_here(file))
    cache = cache_folder()
    return DownloadPlan(
        model=name,
        repo=repo,
        revision=None if repository is None else repository.commit,
        parts=(part,),
        licence=licence[0],
        is_gated=licence[1],
        token_variable=token_variable(),
        has_stored_token=has_stored_token(),
        cache=cache,
        free_bytes=free_bytes(cache),
        here_bytes=here_bytes,
        kind="dataset",
    )


def _plan(
    model: ModelReference,
    parts: tuple[PipelinePart, ...],
    pinned: tuple[str | None, int],
    licence: tuple[str | None, bool | None],
    free_bytes: FreeBytes,
    *,
    is_trainable: bool,
) -> DownloadPlan:
    assert model.repo is not None, "a folder is not downloaded"
    cache = cache_folder()
    return DownloadPlan(
        model=model.asked,
        repo=model.repo,
        revision=pinned[0],
        parts=parts,
        licence=licence[0],
        is_gated=licence[1],
        token_variable=token_variable(),
        has_stored_token=has_stored_token(),
        cache=cache,
        free_bytes=free_bytes(cache),
        here_bytes=pinned[1],
        is_trainable=is_trainable,
    )


def _estimated(row: ModelComponent) -> Iterable[PipelinePart]:
    yield _estimated_part(row.family_facts.denoiser_part, row)
    if row.system is None:
        yield PipelinePart("other parts", None, None, note="not in the catalogue")
        return
    for name, component in _beside(row).items():
        yield _estimated_part(name, catalog.component(component))
    for name in row.system.not_in_catalogue:
        yield PipelinePart("text_encoder", None, None, note=f"{name}, size not in the catalogue")


def _beside(row: ModelComponent) -> Mapping[str, str]:
    """What a denoiser runs beside: its name in the pipeline, and in the catalogue."""
    assert row.system is not None
    found = {} if row.system.vae is None else {"vae": row.system.vae}
    for number, name in enumerate(row.system.text_encoders, start=1):
        found["text_encoder" if number == 1 else f"text_encoder_{number}"] = name
    return found if row.system.image_encoder is None else {**found, "image_encoder": row.system.image_encoder}


def _estimated_part(name: str, row: ModelComponent) -> PipelinePart:
    num_numbers = row.num_params + row.num_persistent_buffer_elements
    return PipelinePart(name, _HALF_BYTES * num_numbers, _FLOAT_BYTES * num_numbers, note=row.name)
