"""Checks without torch whether a model to evaluate can exist."""

from pathlib import Path

from foretune.choices.model import PIPELINE_INDEX, resolve_model
from foretune.core.errors import UserError

_RUN_PATHS = "A run's path has the form runs/<experiment>/<run id>; runs/<experiment>/latest is the newest."
_MOST_PARTS_OF_A_HUB_ID = 2


def check_subject(asked: str | Path) -> None:
    """Raises if the argument is neither a run directory, nor a pipeline's folder, nor a model name."""
    path = Path(asked)
    if (path / "experiment.yaml").is_file():
        return
    if path.is_dir() and not (path / PIPELINE_INDEX).is_file():
        raise UserError(
            f"{path} is neither a run directory (it has no experiment.yaml) nor a pipeline (it has no "
            f"model_index.json). {_RUN_PATHS}"
        )
    # A Hub id has one slash.
    if not path.exists() and len(path.parts) > _MOST_PARTS_OF_A_HUB_ID:
        raise UserError(f"{path} does not exist. {_RUN_PATHS}")
    model = resolve_model(str(asked))
    # So has `runs/name`: what begins with a folder that is here, and is in no catalogue, is a path.
    if model.kind == "hub" and model.family is None and path.parent.is_dir():
        raise UserError(f"{path} does not exist. {_RUN_PATHS}")
