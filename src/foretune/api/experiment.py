"""`init`, `schema` and `check`: experiment files before a run, and the files of a run after it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.api.run import RunLike, path_of
from foretune.core.errors import Refused, UnknownName
from foretune.core.output_files import write_file

if TYPE_CHECKING:
    from foretune.record.checking import Checked


@dataclass(frozen=True)
class Started:
    """An experiment file that was written."""

    path: Path
    warnings: tuple[str, ...]
    note: str | None
    """How the model's name was understood, where it was not exact."""


def init(
    file: str | Path = "experiment.yaml",
    *,
    model: str = "flux.1-dev",
    method: str = "lora",
    data: str | None = None,
    force: bool = False,
) -> Started:
    """Writes an experiment file to start from.

    Args:
        file: where to write it.
        model: a model of the catalogue, hub id or local folder.
        method: full, or an adapter: lora, dora, rslora, loha, lokr, oft.
        data: folder with images and captions; without it, `shapes`.
        force: overwrite an existing file.
    """
    from foretune.choices.method import METHODS
    from foretune.choices.model import resolve_model
    from foretune.config.reading import understand
    from foretune.config.starting import starting_text
    from foretune.config.yaml_files import parse

    path = Path(file)
    if path.exists() and not force:
        raise Refused(f"{path} exists already. Run: foretune init {path} --force, or choose another name")
    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    reference = resolve_model(model)
    text = starting_text(str(path), reference.asked, method, data, family=reference.family)
    # Checked before it is written: a file that would be refused must not be left behind as if it were good.
    asked = understand(parse(text), source="This request")
    write_file(path, text)
    items = "clips" if asked.experiment.data.kind == "clips" else "images"
    return Started(path, (*_absent_data(data, path, items), *asked.warnings), reference.note)


def _absent_data(data: str | None, file: Path, items: str) -> tuple[str, ...]:
    if data is None or Path(data).expanduser().is_dir():
        return ()
    folder = Path(data).expanduser()
    what = "is a file, not a folder" if folder.exists() else "does not exist"
    looked_for = f"(looked for {folder.absolute()})"
    return (f"{data} {what} {looked_for}. Put your {items} there before you train, or change data.path in {file}.",)


def schema() -> dict[str, Any]:
    """The JSON schema of experiment files, for editors that complete and check them."""
    from foretune.config.schema import experiment_schema

    return experiment_schema()


def schema_markdown() -> str:
    """The keys of an experiment file as tables for people."""
    from foretune.config.reference import experiment_reference

    return experiment_reference()


def schema_pages() -> dict[str, str]:
    """The same, one Markdown page a section, by file name."""
    from foretune.config.reference import reference_pages

    return reference_pages()


def check(run: RunLike) -> "Checked":
    """Whether log, record, experiment and environment of a run agree."""
    from foretune.record.checking import check_run

    return check_run(path_of(run))
