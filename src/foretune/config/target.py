"""The target of a command: an experiment file, or a model with which `foretune init` would start an experiment."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from foretune import catalog
from foretune.choices.method import METHODS
from foretune.choices.model import SHIPPED_MODELS, SINGLE_FILE_SUFFIXES, ModelReference, resolve_model
from foretune.config.overrides import overridden, parse_overrides
from foretune.config.readiness import Need
from foretune.config.reading import Asked, Check, as_run_name, read_experiment, understand
from foretune.config.starting import starting_text
from foretune.config.yaml_files import parse
from foretune.core.errors import ExperimentErrors, Mistakes, UnknownName, UserError

_FILE_SUFFIXES = (".yaml", ".yml", ".json")
_NAMES_DATA = (("data",), *(("data", key) for key in ("kind", "path", "folders", "encoded")))
"""Keys of which each says what is trained on."""

_OTHER_LENGTHS = ("epochs", "seconds")
"""Keys of `train` that are set instead of its steps."""


def is_experiment_file(target: str | Path) -> bool:
    """Whether a target is an experiment file. Every other one is a model, also a model in a single file."""
    path = Path(target)
    return path.suffix in _FILE_SUFFIXES or (path.is_file() and path.suffix not in SINGLE_FILE_SUFFIXES)


def starting_mapping(
    model: str,
    reference: ModelReference | None,
    overrides: Sequence[str],
    mistakes: Mistakes,
    *,
    data: str | None = None,
    has_native_size: bool = False,
) -> dict[str, Any]:
    """The content of the file that `foretune init` would write for a model, with the overrides in it.

    `reference` is None where the model's name is wrong. `has_native_size` leaves the size of images to the model.
    Overrides that are wrong are left with `mistakes`.
    """
    name, family = (model, None) if reference is None else (reference.asked, reference.family)
    changes = dict(parse_overrides(overrides, Mistakes()))
    # Full fine-tuning starts with another learning rate than an adapter.
    method = str(_chosen(changes, "method", "kind"))
    kind = _chosen(changes, "data", "kind")
    text = starting_text(
        "experiment.yaml",
        name,
        method if method in METHODS else "lora",
        data,
        family=family,
        data_kind=None if kind is None else str(kind),
    )
    form: dict[str, Any] = parse(text)
    if any(_chosen(changes, "train", key) is not None for key in _OTHER_LENGTHS):
        del form["train"]["steps"]
    if has_native_size:
        for key in ("resolution", "num_frames"):
            form["data"].pop(key, None)
    return overridden(form, overrides, mistakes)


def understand_named(
    mapping: dict[str, Any], reference: ModelReference | None, mistakes: Mistakes, **options: Any
) -> Asked:
    """Checks the experiment of a model that a command names; raises `mistakes` together with those of the experiment.

    `reference` is None where the model's name is wrong, which `mistakes` has. `options` are those of `understand`.
    """
    asked = mistakes.attempt(partial(_understood, knows_model=reference is not None), mapping, options)
    mistakes.raise_all()
    assert asked is not None, "nothing was wrong with it"
    assert reference is not None, "nothing was wrong with it"
    return replace(asked, model=replace(asked.model, note=asked.model.note or reference.note))


def read_target(
    target: str | Path,
    overrides: Iterable[str] = (),
    *,
    data: str | None = None,
    is_synthetic: bool = False,
    needs: Collection[Need] = (),
    checks: Iterable[Check] = (),
) -> Asked:
    """The experiment of a file, or of a model that is trained on `data`; raises with every mistake at once.

    `is_synthetic`: no data are read, so that none have to be named.
    """
    overrides, options = tuple(overrides), {"needs": needs, "checks": checks}
    if is_experiment_file(target):
        return _read_file(Path(target), overrides, data, options)
    target, mistakes = str(target), Mistakes()
    reference = mistakes.attempt(_resolved, target)
    changes = dict(parse_overrides(overrides, Mistakes()))
    named = (("data", data, ("data", "path")), ("data", data, ("data",)), ("model", target, ("model",)))
    for what, typed, key in named:
        if typed and key in changes:
            twice = f"The {what} is named twice: {typed} and {'.'.join(key)}={changes[key]}. Leave out one of the two."
            mistakes.attempt(_refuse, twice)
    typed_path = changes.get(("data", "path"))
    if data is None and isinstance(typed_path, str):
        data = typed_path
    has_data = data is not None or any(key in changes for key in _NAMES_DATA)
    if reference is not None and not has_data and not is_synthetic and reference.asked not in SHIPPED_MODELS:
        mistakes.attempt(
            _refuse,
            f"There are no data to train on. Run: foretune train {target} --data ./photos (a folder of images). "
            "Without images of your own, data.kind=shapes generates them",
        )
    mapping = starting_mapping(target, reference, overrides, mistakes, data=data)
    asked = understand_named(mapping, reference, mistakes, name=_run_name(reference), **options)
    warnings = asked.warnings
    if asked.model.kind == "folder" and target in catalog.denoisers():
        warnings = (f"{target} is a folder here: its model is used, not the catalogue's of that name.", *warnings)
    return replace(asked, is_by_name=True, has_data=has_data, warnings=warnings)


def _read_file(path: Path, overrides: Sequence[str], data: str | None, options: Mapping[str, Any]) -> Asked:
    mistakes = Mistakes()
    if data is not None:
        mistakes.attempt(_refuse, f"An experiment file names its own data. Run: foretune train {path} data.path={data}")
    asked = mistakes.attempt(partial(read_experiment, path, overrides, **options))
    mistakes.raise_all()
    assert asked is not None, "nothing was wrong with it"
    if path.suffix in _FILE_SUFFIXES or not catalog.denoiser_names().fitting(str(path)):
        return asked
    also = f"{path} is a file here, so it is read as an experiment. For the model of that name, rename the file."
    return replace(asked, warnings=(also, *asked.warnings))


def _understood(mapping: dict[str, Any], options: Mapping[str, Any], *, knows_model: bool) -> Asked | None:
    """Returns None if only the model's name is wrong, which is reported elsewhere."""
    try:
        return understand(mapping, source=None, **options)
    except ExperimentErrors as error:
        others = [text for text in error.problems if knows_model or not text.startswith("model: ")]
        if others:
            raise ExperimentErrors(None, others) from error
        return None


def _resolved(target: str) -> ModelReference:
    """The model of a target that is no file; a typing mistake may have been made in either."""
    if (Path(target) / "experiment.yaml").is_file():
        raise UserError(f"{target} is a run directory. Its experiment is a file: {Path(target) / 'experiment.yaml'}")
    try:
        return resolve_model(target)
    except UnknownName as error:
        raise UnknownName("experiment file or model", target, error.known, "foretune list models", error.near) from None


def _refuse(reason: str) -> None:
    raise UserError(reason)


def _chosen(changes: Mapping[tuple[str, ...], Any], section: str, key: str) -> Any:
    """The value that overrides give a key, by itself or in its section."""
    whole = changes.get((section,))
    return changes.get((section, key), whole.get(key) if isinstance(whole, dict) else None)


def _run_name(reference: ModelReference | None) -> str:
    """The name of the folder of the runs: that of the catalogue, of the repository, or of the model's folder."""
    if reference is None:
        return "experiment"
    if reference.folder is not None:
        return as_run_name(reference.folder.absolute().name)
    return as_run_name(reference.asked if reference.kind == "catalogue" else str(reference.repo).rpartition("/")[2])
