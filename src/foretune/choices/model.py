"""What the `model` of an experiment refers to, as far as known without loading it."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foretune import catalog
from foretune.core.errors import Refused, UnknownName, UserError
from foretune.core.input_files import MOST_JSON_BYTES
from foretune.core.input_files import read_json as read_json_file

PIPELINE_INDEX = "model_index.json"
_SHIPPED_FOLDER = Path(__file__).parent.parent / "models" / "shipped"
SHIPPED_MODELS = {
    "foretune-shapes": "a FLUX-class model of 32 px that has learnt to draw shapes; it comes with Foretune",
}
"""Models whose weights are part of the package, and what each is."""
MODEL_SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")
"""Of the files that a model consists of: configurations, weights, tokenizers and their chat templates, which are
rendered in a sandbox. None of them can run code when loaded.
"""
SINGLE_FILE_SUFFIXES = (".safetensors", ".sft", ".ckpt")
"""Of whole models in one file, which other programs train and share."""
_HUB_ID = re.compile(r"^(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?$")


@dataclass(frozen=True)
class ModelReference:
    """Where a model is, and what is known of it before it is loaded."""

    asked: str
    """The catalogue's name where the model was found there, else as it was typed."""
    kind: Literal["catalogue", "folder", "hub"]
    family: str | None
    """None for a hub id that is not in the catalogue: its model_index.json will tell."""
    distilled: bool | None
    folder: Path | None = None
    repo: str | None = None
    revision: str | None = None
    note: str | None = None
    """How a name was understood that is not exactly one of the catalogue's."""


def resolve_model(asked: str, *, relative_to: Path | None = None) -> ModelReference:
    """Finds out what a name means: a folder if there is one, a shipped or catalogued model, or a hub id.

    A catalogued model is also found by what people call it: FLUX.1-dev, sdxl, qwen. A folder that holds no model does
    not hide the model of the same name.
    """
    folder = _folder_named(asked, relative_to or Path())
    in_catalogue = asked in catalog.denoisers()
    is_named = in_catalogue or asked in SHIPPED_MODELS
    if folder is not None and not (is_named and not (folder / PIPELINE_INDEX).is_file()):
        return _folder_reference(asked, folder)
    if asked in SHIPPED_MODELS:
        return _folder_reference(asked, shipped_folder(asked))
    if asked.endswith(SINGLE_FILE_SUFFIXES):
        raise Refused(
            f"A model is a folder, not a single file. Make one of {asked}: "
            f"foretune import-checkpoint {shlex.quote(asked)} --base MODEL"
        )
    if asked.startswith((".", "/", "~")) or asked.endswith("/"):
        raise UserError(f"The model folder {asked} does not exist. Run: foretune list models")
    hub = _HUB_ID.match(asked)
    if hub is None or in_catalogue:
        return _catalogue_reference(asked)
    repo, revision = hub["repo"], hub["revision"]
    for row in catalog.denoisers().values():
        if row.hub_repo is not None and row.hub_repo.lower() == repo.lower():
            return ModelReference(asked, "hub", row.family, row.distilled, repo=row.hub_repo, revision=revision)
    return ModelReference(asked, "hub", None, None, repo=repo, revision=revision)


def on_hub(model: str) -> tuple[str, str | None] | None:
    """Repository and revision of an experiment's model on the Hub, where any program finds it; None for a folder."""
    try:
        reference = resolve_model(model)
    except UserError:
        return None  # a folder by a path that is relative to elsewhere
    return None if reference.repo is None else (reference.repo, reference.revision)


def _catalogue_reference(asked: str) -> ModelReference:
    names = catalog.denoiser_names()
    try:
        found = names.resolve(asked)
    except UnknownName:
        known, near = (*catalog.denoisers(), *SHIPPED_MODELS), names.near(asked)
        raise UnknownName("model in the catalogue", asked, known, "foretune list models", near) from None
    row = catalog.denoisers()[found.name]
    return ModelReference(
        found.name,
        "catalogue",
        row.family,
        row.distilled,
        repo=row.hub_repo,
        revision=row.hub_revision,
        note=found.note,
    )


def shipped_folder(name: str) -> Path:
    """Where a model that comes with Foretune lies."""
    assert name in SHIPPED_MODELS
    return _SHIPPED_FOLDER / name


def _folder_named(asked: str, relative_to: Path) -> Path | None:
    try:
        folder = relative_to / Path(asked).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError):
        # Too long for a file system, or "~someone" who is not there: no folder has that name.
        return None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint; anything else is named as what is wrong with the folder."""
    try:
        data = read_json_file(path, MOST_JSON_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} should hold a JSON object, but holds {type(data).__name__}.")
    return data


def trainable_facts(index: Mapping[str, Any], whose: str) -> catalog.FamilyFacts:
    """The family of a pipeline, by its model_index.json; raises where it cannot be trained."""
    pipeline_class = str(index.get("_class_name"))
    family = catalog.family_of_pipeline(pipeline_class)
    if family is None:
        raise Refused(f"{whose} is a {pipeline_class}, which cannot be trained yet. Run: foretune list models")
    facts = catalog.family_facts(family)
    if (index.get(f"{facts.denoiser_part}_2") or [None])[0] is not None:
        raise Refused(
            f"{whose} has two denoisers, one for high and one for low noise, which cannot be trained yet. Nearest: a "
            "model of the same family with one denoiser. Run: foretune list models"
        )
    return facts


def _folder_reference(asked: str, folder: Path) -> ModelReference:
    index = folder / PIPELINE_INDEX
    if not index.is_file():
        raise UserError(
            f"{asked} is a folder without model_index.json, so it is not in the diffusers layout. "
            "Point `model` at the folder that holds model_index.json, transformer/ or unet/, and so on."
        )
    pipeline_class = str(read_json(index).get("_class_name"))
    family = catalog.family_of_pipeline(pipeline_class)
    if family is None:
        known = ", ".join(sorted(name for row in catalog.TRAINABLE.values() for name in row.pipeline_class_names))
        raise Refused(f"{asked} is a {pipeline_class}, which cannot be trained yet. Trainable: {known}.")
    return ModelReference(asked, "folder", family, _is_distilled(folder, catalog.family_facts(family)), folder=folder)


def _is_distilled(folder: Path, facts: catalog.FamilyFacts) -> bool | None:
    """None where the folder does not tell."""
    config = folder / facts.denoiser_part / "config.json"
    if facts.guidance_embeds_tell_distillation and config.is_file():
        return not read_json(config).get("guidance_embeds", False)
    return None
