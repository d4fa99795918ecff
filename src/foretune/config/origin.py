"""Where an experiment comes from that another trainer would run."""

from dataclasses import dataclass

from foretune.choices.step_form import TrainerHabits


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A training of another program, as far as a plan tells of it."""

    title: str
    """The program."""
    file: str
    """Name of its configuration."""
    habits: TrainerHabits
    is_backtested: bool
    """Whether forecasts of that program were compared with its published figures."""
    model: str | None
    """The model as its configuration names it, if that is not the catalogue's name of it."""
    assumed: tuple[str, ...]
    """What the configuration leaves open, and how it was read."""
    lacking: tuple[tuple[str, str], ...]
    """Keys without an equivalent, each with what that means."""
    unknown: tuple[str, ...]
    """Keys that are not known here."""
    unimitated: tuple[str, ...]
    """What the plan does not imitate."""
