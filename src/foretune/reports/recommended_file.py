"""The experiment file of a recommended configuration."""

from textwrap import wrap

from foretune.config.overrides import apply_overrides
from foretune.config.reading import Asked
from foretune.config.yaml_files import typed
from foretune.planner.search.searching import Answer
from foretune.reports.search_words import sentence

_WIDTH = 118


def experiment_text(asked: Asked, answer: Answer) -> str:
    """The requested experiment with the recommended settings, one section on each line."""
    overrides = [f"{key}={typed(value)}" for key, value in answer.best.settings.items()]
    mapping = apply_overrides(asked.as_asked, overrides)
    comment = "\n".join(f"# {line}" for line in wrap(sentence(asked, answer), _WIDTH, break_on_hyphens=False))
    lines = [f"{key}: {typed(value)}" for key, value in mapping.items()]
    return f"# A Foretune experiment, found by a search of devices and settings.\n{comment}\n" + "\n".join(lines) + "\n"
