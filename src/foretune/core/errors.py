"""Errors that write their own sentence: what was requested, what is the case, what to run next.

`UserError` is for what the user can fix; everything else that goes wrong is ours and is an assertion.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

_FEWEST_LETTERS_OF_A_BEGINNING = 3


def closest(asked: str, known: Iterable[str]) -> str | None:
    """The known name that the asked one was probably meant to be, or None if nothing is near."""
    by_lower = {name.lower(): name for name in known}
    lower = asked.lower()
    begun = [name for name in by_lower if len(lower) >= _FEWEST_LETTERS_OF_A_BEGINNING and name.startswith(lower)]
    matches = [min(begun, key=len)] if begun else difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.55)
    return by_lower[matches[0]] if matches else None


class UserError(Exception):
    """Something the user can fix; its text says how. The command line prints it without a traceback."""

    exit_code = 2


class UnknownName(UserError):
    """A name that is in no list of known ones."""

    def __init__(
        self, kind: str, asked: str, known: Iterable[str], see: str | None = None, near: Iterable[str] = ()
    ) -> None:
        """`see`: the command that lists them all. `near`: what else was probably meant, if no known name is close."""
        self.kind, self.asked, self.known = kind, asked, sorted(known)
        self.near = tuple(near)
        guess = closest(asked, self.known)
        *others, last = [repr(name) for name in ([guess] if guess else self.near)] or [""]
        guesses = f"{', '.join(others)} or {last}" if others else last
        hint = f"Did you mean {guesses}?" if guesses else f"Known: {_shortened(self.known)}."
        listed = "" if guesses or see is None else f" Run: {see}"
        super().__init__(f"There is no {kind} named {asked!r}. {hint}{listed}")


class AmbiguousName(UserError):
    """A name that fits several known ones."""

    def __init__(self, kind: str, asked: str, candidates: Iterable[str]) -> None:
        self.kind, self.asked, self.candidates = kind, asked, tuple(candidates)
        super().__init__(
            f"{asked!r} fits {len(self.candidates)} {kind}s: {_shortened(self.candidates)}. Use one of these names."
        )


class MissingExtra(UserError):
    """A feature whose packages are not installed; the text is the command that installs them."""

    def __init__(self, feature: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{feature} needs packages that are not installed. Run: pip install 'foretune[{extra}]'")


class ExperimentErrors(UserError):
    """Everything that is wrong with an experiment, at once."""

    def __init__(self, source: str | None, problems: Sequence[str], refused: Sequence[str] = ()) -> None:
        """Without a source, the problems are those of a command, and each says where it is.

        `refused`: those of the problems that are combinations of valid settings which do not work together.
        """
        self.source, self.problems, self.refused = source, tuple(problems), tuple(refused)
        count = "1 mistake" if len(self.problems) == 1 else f"{len(self.problems)} mistakes"
        lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(self.problems, start=1))
        super().__init__(f"{source or 'This command'} has {count}:\n{lines}")


class Mistakes:
    """Collects the errors of several stages, so that one command reports all of them."""

    def __init__(self) -> None:
        self._errors: list[UserError] = []

    def __len__(self) -> int:
        return len(self._errors)

    def attempt(self, stage: Callable[..., T], *arguments: Any) -> T | None:
        """What a stage returns; where it raises a `UserError`, that is kept and the answer is None."""
        try:
            return stage(*arguments)
        except UserError as error:
            self._errors.append(error)
            return None

    def raise_all(self, source: str | None = None) -> None:
        """Raises a single error as it is, and several as one of the source; nothing where nothing is wrong."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            lines = dict.fromkeys(line for error in self._errors for line in _problems(error))
            raise ExperimentErrors(source, list(lines))


def _problems(error: UserError) -> Sequence[str]:
    if isinstance(error, ExperimentErrors):
        return [f"{error.source}: {problem}" if error.source else problem for problem in error.problems]
    return (str(error),)


class Refused(UserError):
    """A request that is understood but would not work; the text names the nearest thing that does."""


def _shortened(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return f"{shown}, and {len(names) - most} more" if len(names) > most else shown
