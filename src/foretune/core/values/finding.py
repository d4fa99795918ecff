"""One sentence for people, with what it rests on."""

from foretune.core.values.base import Value


class Finding(Value):
    """A statement that a reader can trace back to its runs."""

    sentence: str
    evidence: tuple[str, ...]
    """Run ids, or paths into a run directory."""
    caveat: str | None = None
