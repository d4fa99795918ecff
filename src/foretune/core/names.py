"""The one resolver of names that people type: models and devices are found by the words their owners use for them.

Nothing is guessed. A name is resolved where one entry fits it, or where a convention says which is meant; where several
fit, the answer is their list; where none does, the error names the nearest one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate

from foretune.core.errors import AmbiguousName, UnknownName

_NEAR = 0.75
"""Likeness of a mistyped name to the beginning of one; 1 is equal."""
_SHORTEST_PART = 3
"""Characters that part of a name needs: one or two fit nearly everything."""


@dataclass(frozen=True)
class Resolved:
    """A name of the catalogue for what was typed."""

    name: str
    typed: str
    others: tuple[str, ...] = ()
    """Further entries that the typed words fit."""

    @property
    def note(self) -> str | None:
        """What to tell the user; None if the name was typed as it is, but for capital letters."""
        if self.typed.lower() == self.name:
            return None
        also = f" (also: {', '.join(self.others)})" if self.others else ""
        return f"'{self.typed}' resolved to {self.name}{also}"


@dataclass(frozen=True)
class Names:
    """Entries of one kind and what else each is called."""

    kind: str
    known: Mapping[str, Sequence[str]]
    """Other names by the entry's own: a title, a Hub id."""
    details: Mapping[str, Sequence[str]]
    """Words that describe an entry without naming it: its memory."""
    conventions: Mapping[str, str]
    """What people mean by a name that fits several entries: h100 is h100-sxm."""
    ignored: frozenset[str] = frozenset()
    """Words that tell no entries apart: the vendor."""

    def resolve(self, typed: str) -> Resolved:
        """The entry that is meant; raises `AmbiguousName` where several fit and `UnknownName` where none does."""
        if typed in self.known:
            return Resolved(typed, typed)
        words = self._words(typed)
        squeezed = "".join(words)
        with_words = self._with_words(words)
        begun = self._beginning(squeezed, inside_words=True)
        for fitting in (self._spelt(squeezed), with_words, self._beginning(squeezed)):
            chosen = self._chosen(squeezed, words, fitting)
            if chosen is not None:
                return Resolved(chosen, typed, tuple(name for name in with_words if name != chosen))
            if fitting:
                raise AmbiguousName(self.kind, typed, [n for n in self.known if n in fitting or n in begun])
        if len(begun) > 1:
            raise AmbiguousName(self.kind, typed, begun)
        # One that only begins like it may be another thing altogether: an L40 is not an L40S.
        raise UnknownName(self.kind, typed, self.known)

    def fitting(self, typed: str) -> tuple[str, ...]:
        """Every entry that a name may mean, first the one that `resolve` takes; none where the name is unknown.

        A name that is an entry's own means no other one; what a convention says may.
        """
        squeezed = "".join(self._words(typed))
        for name in self.known:
            own = (called for called in self._called(name) if called not in self.conventions)
            if squeezed in {"".join(self._words(called)) for called in own}:
                return (name,)
        try:
            found = self.resolve(typed)
        except AmbiguousName as error:
            return error.candidates
        except UnknownName:
            return ()
        return (found.name, *found.others)

    def near(self, typed: str) -> tuple[str, ...]:
        """Entries of which some name begins nearly like an unknown one: flux.1-dev and others for fluxx."""
        squeezed = "".join(self._words(typed))
        begun = {name: tuple(self._beginnings(name)) for name in self.known}
        matches = get_close_matches(squeezed, {text for texts in begun.values() for text in texts}, n=1, cutoff=_NEAR)
        return tuple(name for name in self.known if matches and matches[0] in begun[name])

    def _words(self, text: str) -> list[str]:
        return [word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in self.ignored]

    def _spelt(self, squeezed: str) -> list[str]:
        """Entries whose name or other name is the same but for case, blanks and punctuation."""
        return [name for name in self.known if squeezed in {"".join(self._words(n)) for n in self._called(name)}]

    def _with_words(self, words: Sequence[str]) -> list[str]:
        """Entries that have every typed word in their names or details."""
        if len("".join(words)) < _SHORTEST_PART:
            return []
        return [name for name in self.known if set(words) <= self._described(name)]

    def _beginning(self, squeezed: str, *, inside_words: bool = False) -> list[str]:
        """Entries of which one name begins like this, up to the end of a word or also inside of one."""
        if len(squeezed) < _SHORTEST_PART:
            return []
        return [
            name
            for name in self.known
            if any(
                begun.startswith(squeezed) if inside_words else begun == squeezed for begun in self._beginnings(name)
            )
        ]

    def _beginnings(self, name: str) -> Iterator[str]:
        for called in self._called(name):
            yield from accumulate(self._words(called))

    def _called(self, name: str) -> tuple[str, ...]:
        return (name, *self.known[name])

    def _described(self, name: str) -> set[str]:
        return {word for text in (*self._called(name), *self.details.get(name, ())) for word in self._words(text)}

    def _chosen(self, squeezed: str, words: Sequence[str], fitting: Sequence[str]) -> str | None:
        """The only one; the one that a convention names; or the plain one of a series (4070, not 4070 Ti)."""
        if len(fitting) == 1:
            return fitting[0]
        by_convention = {"".join(self._words(text)): name for text, name in self.conventions.items()}
        if by_convention.get(squeezed) in fitting:
            return by_convention[squeezed]
        rest = {name: set(self._words(name)) - set(words) for name in fitting if set(words) <= self._described(name)}
        plain = [name for name in rest if all(rest[name] <= other for other in rest.values())]
        return plain[0] if len(plain) == 1 else None
