"""`import_config`: another trainer's configuration as an experiment file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.core.errors import Refused, UserError
from foretune.core.output_files import write_file

if TYPE_CHECKING:
    from foretune.config.from_accelerate.config_keys import KeyAnswer
    from foretune.config.from_trainers.importing import TranslatedTraining


@dataclass(frozen=True)
class ImportedTraining:
    """Another trainer's configuration as an experiment file, and what became of each of its keys."""

    path: Path
    """The experiment file."""
    found: "TranslatedTraining"

    @property
    def program(self) -> str:
        """The program whose configuration it was."""
        return self.found.program.title

    @property
    def experiment(self) -> dict[str, Any]:
        """The experiment, as `plan` and `train` take it."""
        return dict(self.found.mapping)

    @property
    def keys(self) -> "tuple[KeyAnswer, ...]":
        """Every key of the file: what it became, or why it became nothing."""
        return self.found.answers

    @property
    def unsupported(self) -> tuple[str, ...]:
        """The keys that have no equivalent or are not known."""
        return tuple(answer.key for answer in self.found.keys_with("not supported", "unknown"))

    @property
    def assumed(self) -> tuple[str, ...]:
        """What the file leaves open, and how it was read."""
        return self.found.assumed


def import_config(
    file: str | Path,
    output: str | Path = "experiment.yaml",
    *,
    model: str | None = None,
    force: bool = False,
) -> ImportedTraining:
    """Translates a configuration of SimpleTuner, ai-toolkit, kohya's sd-scripts, OneTrainer or a diffusers example
    script into an experiment file. None of these programs need be installed, and nothing in the file is run.

    Args:
        file: its configuration; for scripts, a file with the command line.
        output: where to write the experiment.
        model: a model of the catalogue, instead of what the file names.
        force: overwrite an existing file.
    """
    path, target = Path(file), Path(output)
    if not path.exists():
        raise UserError(f"{path} does not exist. Name a configuration of another trainer")
    if target.exists() and not force:
        raise Refused(f"{target} exists already. Run: foretune import {path} --force, or choose another name with -o")
    from foretune.choices.model import resolve_model
    from foretune.config.from_trainers.experiment_text import experiment_text
    from foretune.config.from_trainers.importing import translate
    from foretune.config.reading import understand
    from foretune.config.yaml_files import parse

    found = translate(path, None if model is None else resolve_model(model).asked)
    text = experiment_text(path.name, found, str(target))
    # Checked before it is written: a file that would be refused must not be left behind as if it were good.
    understand(parse(text), source=f"{path} as an experiment")
    write_file(target, text)
    return ImportedTraining(target, found)
