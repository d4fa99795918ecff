"""What of a run others get to see: its export, samples and model card, and no folder of this machine."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foretune import catalog
from foretune.analyse.comparability import too_few_steps
from foretune.analyse.evaluations import EVALUATION_FILE, evaluation_of
from foretune.analyse.run_data import read_run
from foretune.catalog import Licence
from foretune.choices.experiment import Experiment
from foretune.choices.model import PIPELINE_INDEX, on_hub, read_json
from foretune.core.errors import UserError
from foretune.core.input_files import open_input
from foretune.core.values import Evaluation, RunRecord
from foretune.core.values.evaluation import sample_file
from foretune.record.atomic import write_text
from foretune.record.redaction import redacted_text
from foretune.record.run_directory import RunDirectory
from foretune.reports.model_card import CardFacts, CardSample, model_card

_CARD = "README.md"
_SAMPLES = "samples"
_SAMPLE = re.compile(r"step-(?P<step>\d+)-(?P<prompt>\d+)\.(png|webp)")
_MOST_PICTURE_BYTES = 10**9


@dataclass(frozen=True)
class PublicBase:
    """The model that a run started from, as others can find it."""

    folder: Path
    """Where it is on this machine; never published."""
    name: str
    repo: str | None
    """None where it is not on the Hub."""
    revision: str | None

    @property
    def argument(self) -> str:
        """For `from_pretrained`."""
        if self.repo is None:
            return '"FOLDER_OF_THE_BASE_MODEL"'
        return f'"{self.repo}"' + ("" if self.revision is None else f', revision="{self.revision}"')


@dataclass(frozen=True)
class PublicExport:
    """What a card says of an export."""

    repo: str
    how_to_load: str
    proof: str
    note: str | None


def base_of(directory: RunDirectory) -> PublicBase:
    """By the name that the experiment has for it. The last part of a folder's path is its name."""
    _, experiment, effective = directory.read_experiment()
    folder, model = Path(effective["model_folder"]), experiment.model
    found = on_hub(model)
    if found is None:
        return PublicBase(folder, Path(model).name, None, None)
    return PublicBase(folder, found[0], found[0], effective.get("model_revision"))


def require_record(directory: RunDirectory) -> RunRecord:
    """Returns the record; raises if the run has not ended."""
    record = directory.read_record()
    if record is None:
        raise UserError(
            f"{directory.path} has no record: it still runs, or it was killed. Run: foretune resume {directory.path}"
        )
    return record


def write_card(
    directory: RunDirectory, folder: Path, base: PublicBase, export: PublicExport, licence: str | None
) -> str:
    """Writes the card and the samples that it shows beside an export, and returns the card."""
    _, experiment, _ = directory.read_experiment()
    record = require_record(directory)
    evaluation = _public_evaluation(directory, base)
    known = None if base.repo is None else catalog.licences().get(base.repo)
    if licence is not None:
        known = Licence(hub_repo=base.repo or "x/x", licence=licence, link=None, is_gated=None, source="the user")
    facts = CardFacts(
        repo=export.repo,
        experiment=experiment,
        record=record,
        evaluation=evaluation,
        too_few_steps=too_few_steps([read_run(directory.path)]),
        base=base.name,
        base_repo=base.repo,
        base_revision=base.revision,
        pipeline_class_name=str(read_json(base.folder / PIPELINE_INDEX).get("_class_name")),
        is_adapter=not (folder / PIPELINE_INDEX).is_file(),
        how_to_load=export.how_to_load,
        proof=export.proof,
        note=export.note,
        licence=known,
        samples=tuple(_copied_samples(directory, experiment, evaluation, folder)),
    )
    card = redacted_text(model_card(facts))
    write_text(folder / _CARD, card)
    return card


def _public_evaluation(directory: RunDirectory, base: PublicBase) -> Evaluation | None:
    """Without folders: a model that is one is called by its last part."""
    evaluation = evaluation_of(directory.path)
    if evaluation is None:
        return None
    folders = {str(base.folder): base.name, directory.read_experiment()[1].model: base.name}
    labels = {
        field: folders.get(label) or (Path(label).name if Path(label).expanduser().is_dir() else label)
        for field, label in (("subject", evaluation.subject), ("base", evaluation.base))
        if label is not None
    }
    return evaluation.model_copy(update=labels)


def _copied_samples(
    directory: RunDirectory, experiment: Experiment, evaluation: Evaluation | None, folder: Path
) -> Iterator[CardSample]:
    """The newest samples of the run; without them, those of its evaluation."""
    for path, prompt in _validated(directory, experiment) or _evaluated(directory, evaluation):
        target = folder / _SAMPLES / path.name
        target.parent.mkdir(exist_ok=True)
        with open_input(path, _MOST_PICTURE_BYTES, within=directory.path) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        yield CardSample(f"{_SAMPLES}/{path.name}", prompt)


def _validated(directory: RunDirectory, experiment: Experiment) -> list[tuple[Path, str]]:
    found: dict[int, dict[int, Path]] = {}
    for path in sorted(directory.samples.glob("step-*")):
        match = _SAMPLE.fullmatch(path.name)
        if match is not None:
            # A clip comes after its strip of frames, and is what is shown.
            found.setdefault(int(match["step"]), {})[int(match["prompt"])] = path
    prompts = experiment.validation.prompts
    newest = found[max(found)] if found else {}
    return [(path, prompts[number]) for number, path in sorted(newest.items()) if number < len(prompts)]


def _evaluated(directory: RunDirectory, evaluation: Evaluation | None) -> list[tuple[Path, str]]:
    if evaluation is None:
        return []
    at = (directory.path / EVALUATION_FILE).parent
    prompts = [str(prompt) for prompt in evaluation.settings["prompts"]]
    pairs = [(at / sample_file("run", number), prompt) for number, prompt in enumerate(prompts)]
    return [(path, prompt) for path, prompt in pairs if path.is_file()]
