"""`import_checkpoint`: a single-file checkpoint becomes a model folder that can be trained."""

from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.start import import_libraries
from foretune.core.errors import UserError
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.output_files import require_writable

if TYPE_CHECKING:
    from foretune.training.for_tools.import_file import ImportedCheckpoint


def import_checkpoint(
    file: str | Path,
    base: str,
    output: str | Path | None = None,
    *,
    follow_links: bool = False,
    observer: Observer | None = None,
) -> "ImportedCheckpoint":
    """Turns a single-file checkpoint (.safetensors), as ComfyUI and kohya's trainers use them, into a model folder in
    the diffusers layout. The folder can be used as `model` of an experiment.

    Args:
        file: the checkpoint.
        base: the model that it was made from (catalogue name, Hub id or local folder). Configurations, tokenizers and
            parts that the file lacks are taken from it; it is downloaded if needed.
        output: folder to write to; if left out, one with the name of the file in the current folder.
        follow_links: also copy files that links of the base's folder lead to elsewhere.
        observer: receives progress.

    Raises:
        Refused: the file is not of this family or size, is quantised, or is a pickle.
        UserError: a file does not exist, is damaged or cannot be written.
    """
    path = Path(file)
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    from foretune.choices.model import resolve_model

    reference = resolve_model(base)
    target = Path(output) if output is not None else Path(path.stem)
    require_writable(target)
    require("train", "Importing a checkpoint")
    observer = observer or Observer()
    import_libraries(observer, "foretune.training.for_tools.import_file")
    from foretune.models.locating import locate, open_family
    from foretune.training.for_tools.import_file import import_file

    folder, _ = locate(reference)
    observer.message(f"Reading {path} as a model like {base} ...")
    return import_file(path, open_family(folder), folder, target, follow_links=follow_links)
