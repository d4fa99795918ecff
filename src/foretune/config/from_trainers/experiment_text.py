"""An imported training as an experiment file: settings first, then what became of the other program's keys."""

from collections.abc import Iterable

from foretune.config.from_accelerate.config_keys import KeyAnswer
from foretune.config.from_accelerate.fragment import entries, value_text, wrapped
from foretune.config.from_trainers.importing import TranslatedTraining
from foretune.config.yaml_files import typed
from foretune.core.input_files import shown

_ORDER = (
    *("model", "method", "data", "train", "objective", "optimizer", "quantize", "levers", "validate", "save"),
    *("parallel", "track", "accept"),
)


def experiment_text(source: str, found: TranslatedTraining, file: str) -> str:
    """The text of the file. Each key without an equivalent has its own entry in the comments."""
    lines = [
        f"# From {shown(source)}, a configuration of {found.program.title}.",
        f"# Start it with: foretune train {shown(file)}. Every key: foretune schema",
        *(f"{name}: {typed(found.mapping[name])}" for name in sorted(found.mapping, key=_ORDER.index)),
        "",
        *wrapped("Assumed", [shown(text) for text in found.assumed]),
        *wrapped("No equivalent", _each(found.keys_with("not supported"))),
        *wrapped("Unknown keys", _each(found.keys_with("unknown"))),
        *wrapped("Translated", entries(found.keys_with("translated"))),
        *wrapped("The same by default", entries(found.keys_with("same"))),
        *wrapped("Does not matter for training here", entries(found.keys_with("not needed"))),
    ]
    return "\n".join(lines) + "\n"


def _each(answers: Iterable[KeyAnswer]) -> list[str]:
    return [f"{shown(answer.key)}: {value_text(answer)} -> {shown(answer.text)}" for answer in answers]
