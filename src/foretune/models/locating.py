"""Resolves a model reference to a local folder, and a catalogue name to an architecture."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune import catalog
from foretune.choices.model import MODEL_SUFFIXES, ModelReference, read_json
from foretune.core.errors import Refused, UserError
from foretune.core.input_files import open_input
from foretune.models import FAMILIES
from foretune.models.family import Architecture, Family
from foretune.models.trainable import TrainableFamily

_INDEX = "model_index.json"
# The same weights in another dtype.
_VARIANTS = ("*.fp16.*", "*.bf16.*", "*.fp16-*", "*.bf16-*")
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def locate(model: ModelReference) -> tuple[Path, str | None]:
    """Returns the model's folder, downloaded if needed, and its exact revision (None for a local folder)."""
    if model.folder is not None:
        return model.folder, None
    assert model.repo is not None, "only folders have no repository"
    return _download(model.repo, model.revision)


def open_family(folder: Path) -> TrainableFamily:
    """Returns the family of a checkpoint on disk, bound to its configuration."""
    _require_files(folder)
    family = _family_class(read_json(folder / _INDEX), str(folder))
    bound = family(Architecture.from_folder(folder, family.facts.denoiser_part))
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


def _family_class(index: Mapping[str, Any], whose: str) -> type[TrainableFamily]:
    pipeline_class = str(index.get("_class_name"))
    name = catalog.family_of_pipeline(pipeline_class)
    if name is None:
        raise Refused(f"{whose} is a {pipeline_class}, which cannot be trained yet. Run: foretune list models")
    found = FAMILIES[name]
    assert issubclass(found, TrainableFamily), f"the facts table calls {name} trainable"
    found.refuse_parts(index, whose)
    return found


def _download(repo: str, revision: str | None) -> tuple[Path, str]:
    """Downloads the pipeline's index first: it shows whether the model is supported and which folders are needed."""
    from huggingface_hub import HfApi, snapshot_download

    token = next((os.environ[name] for name in _TOKEN_VARIABLES if os.environ.get(name)), None)
    try:
        pinned = revision if _is_commit(revision) else _newest_commit(HfApi(token=token), repo, revision)

        def fetch(*patterns: str) -> Path:
            return Path(
                snapshot_download(
                    repo, revision=pinned, token=token, allow_patterns=list(patterns), ignore_patterns=list(_VARIANTS)
                )
            )

        index = read_json(fetch(_INDEX) / _INDEX)
        family = _family_class(index, repo)
        parts = [name for name, entry in index.items() if isinstance(entry, list) and entry[0] is not None]
        folder = fetch(_INDEX, *(f"{part}/*{suffix}" for part in parts for suffix in MODEL_SUFFIXES))
        if not (folder / family.facts.denoiser_part).is_dir():
            # The oldest checkpoints have all files in the model folder.
            folder = fetch(*(f"*{suffix}" for suffix in MODEL_SUFFIXES))
    except UserError:
        raise
    except Exception as error:  # all failures of the Hub get the same advice and include its message
        raise UserError(
            f"{repo} could not be downloaded from the Hub: {type(error).__name__}: {_first_line(error).rstrip('.')}. "
            "If the model is gated, accept its licence on the hub and set HF_TOKEN; without a network, point "
            "`model` at a local folder in the diffusers layout."
        ) from error
    assert pinned is not None, "a snapshot has a revision"
    return folder, pinned


def _is_commit(revision: str | None) -> bool:
    return revision is not None and len(revision) == 40 and set(revision) <= set("0123456789abcdef")  # noqa: PLR2004


def _newest_commit(hub: Any, repo: str, revision: str | None) -> str:
    """Returns the commit that a branch points to now, so that the record identifies exactly what was trained."""
    return str(hub.model_info(repo, revision=revision).sha)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no reason given"
