"""Resolves a model reference to a local folder, and a catalogue name to an architecture."""

from pathlib import Path

from foretune import catalog
from foretune.choices.model import MODEL_SUFFIXES, PIPELINE_INDEX, ModelReference, read_json, trainable_facts
from foretune.core.input_files import open_input
from foretune.hub.needed import explain_download_failures, find_needed_files
from foretune.hub.transfer import download
from foretune.models import FAMILIES
from foretune.models.family import Architecture, Family
from foretune.models.plain_folder import require_plain_pipeline
from foretune.models.trainable import TrainableFamily


def locate(model: ModelReference) -> tuple[Path, str | None]:
    """Returns the model's folder, downloaded if needed, and its exact revision (None for a local folder)."""
    if model.folder is not None:
        return model.folder, None
    assert model.repo is not None, "only folders have no repository"
    repository, files = find_needed_files(model.repo, model.revision)
    with explain_download_failures(repository.repo):
        download(repository, files)
    return repository.folder, repository.commit


def open_family(folder: Path) -> TrainableFamily:
    """Returns the family of a checkpoint on disk, bound to its configuration."""
    _require_files(folder)
    require_plain_pipeline(folder)
    facts = trainable_facts(read_json(folder / PIPELINE_INDEX), str(folder))
    family = FAMILIES[facts.name]
    assert issubclass(family, TrainableFamily), f"the facts table calls {facts.name} trainable"
    bound = family(Architecture.from_folder(folder, facts.denoiser_part))
    bound.refuse_variant(str(folder))
    return bound


def _require_files(folder: Path) -> None:
    """Raises if the folder contains a pipe or device in place of a file: libraries that read it would block for ever.

    Links are followed, because a snapshot in the Hub's cache consists of them.
    """
    for pattern in ("*", "*/*"):
        for path in sorted(folder.glob(pattern)):
            if path.suffix in MODEL_SUFFIXES and path.exists() and not (path.is_file() or path.is_dir()):
                open_input(path, 0)


def family_from_catalogue(name: str) -> Family:
    """Returns the family of a catalogued model, bound to its catalogued configuration, without any files."""
    row = catalog.denoiser(name)
    assert row.family is not None, "every denoiser has a family"
    vae = catalog.component(row.system.vae).config if row.system and row.system.vae else None
    return FAMILIES[row.family](Architecture(denoiser=row.config, vae=vae))
