"""`publish`: a run's export with its samples and a model card, on the Hub."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.export import FilePrecision, export
from foretune.api.run import RunLike, path_of
from foretune.core.errors import UserError
from foretune.core.extras import require
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.reports.publication import PublicBase, PublicExport
    from foretune.training.exporting import Exported, ExportProof

FOLDER = "publish"
"""In the run directory: what is uploaded."""


@dataclass(frozen=True)
class PublishedRun:
    """A folder that is on the Hub, or would be."""

    folder: Path
    repo: str
    files: tuple[tuple[str, int], ...]
    """Paths in the repository, and sizes in bytes."""
    card: str
    url: str | None
    """None after a dry run."""

    def __str__(self) -> str:
        """What `foretune publish` prints."""
        from foretune.reports.terminal.publish import published_lines

        return "\n".join(published_lines(self.folder, self.repo, self.files, self.card, self.url))


def publish(
    run: RunLike,
    to: str,
    *,
    dry_run: bool = False,
    private: bool = True,
    precision: FilePrecision | None = None,
    merge: bool = False,
    follow_links: bool = False,
    licence: str | None = None,
    observer: Observer | None = None,
) -> PublishedRun:
    """Exports a run, writes a model card from its record, and uploads both with the samples.

    Args:
        run: a run directory.
        to: the repository, `owner/name`; it is made if it does not exist.
        dry_run: write RUN/publish, which would be uploaded, and upload nothing.
        private: whether a new repository is private.
        precision: dtype of the weights; as the run computes if left out.
        merge: publish a whole pipeline with the adapter merged in.
        follow_links: also publish files that links of the model folder lead to elsewhere.
        licence: of the base model, where the catalogue does not know it.
        observer: receives progress.

    Raises:
        ExportBroken: what was exported does not give the trained model back; nothing is uploaded.
        UserError: the Hub refuses, or a file would publish a path of this machine or a secret.
    """
    from foretune.hub.personal import Personal, clean_origins, refuse_personal
    from foretune.hub.uploading import check_card, files_of, require_repo_name, require_token, upload
    from foretune.record.run_directory import RunDirectory
    from foretune.reports.publication import base_of, require_record, write_card

    require_repo_name(to)
    directory = RunDirectory.open(path_of(run))
    require_record(directory)
    require("train,hub", "Publishing a run")
    if not dry_run:
        require_token()
    observer = observer or Observer()
    folder = directory.path / FOLDER
    _require_folder(folder)
    base = base_of(directory)
    personal = Personal([directory.path, base.folder])
    with tempfile.TemporaryDirectory(prefix=f".{FOLDER}.unfinished-", dir=directory.path) as unfinished:
        made = Path(unfinished) / FOLDER
        exported = export(run, made, precision=precision, merge=merge, follow_links=follow_links, observer=observer)
        clean_origins(made, personal, base.name)
        card = write_card(directory, made, base, _as_published(exported, to, base), licence)
        # What an earlier call left there is kept until there is something new.
        if folder.is_dir():
            shutil.rmtree(folder)
        made.rename(folder)
    refuse_personal(folder, personal)
    check_card(folder)
    if not dry_run:
        observer.message(f"Uploading {folder} to {to} ...")
    url = None if dry_run else upload(folder, to, is_private=private)
    return PublishedRun(folder, to, files_of(folder), card, url)


def _require_folder(folder: Path) -> None:
    """Raises if something other than a folder is where one is to be written."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} is not a folder. Remove it, and run the command again.")


def _as_published(exported: "Exported[ExportProof]", repo: str, base: "PublicBase") -> "PublicExport":
    """What a card says of an export: loaded from the Hub, beside a base that others can find."""
    from foretune.reports.publication import PublicExport

    return PublicExport(
        repo=repo,
        how_to_load=exported.loading.format(base=base.argument, export=f'"{repo}"'),
        proof=str(exported.proof),
        note=exported.note,
    )
