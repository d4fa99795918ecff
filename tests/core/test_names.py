"""Names as people type them: one answer, a list, or the nearest."""

import pytest

from foretune.core.errors import AmbiguousName, UnknownName
from foretune.core.names import Names, Resolved

SHIPS = Names(
    kind="ship",
    known={
        "star-1-small": ("Star One Small",),
        "star-1-large": (),
        "moon-7": ("harbour/Moon-7",),
        "moon-7-plus": (),
        "comets": (),
    },
    details={"moon-7": ("20m",), "star-1-large": ("50m",)},
    conventions={"star": "star-1-small"},
    ignored=frozenset({"ship"}),
)


def test_entries_that_begin_nearly_like_what_was_typed() -> None:
    assert SHIPS.near("staar") == ("star-1-small", "star-1-large")
    assert SHIPS.near("harbor") == ("moon-7",)
    assert SHIPS.near("submarine") == ()


@pytest.mark.parametrize(
    ("typed", "name", "others"),
    [
        ("moon-7", "moon-7", ()),
        ("MOON 7", "moon-7", ("moon-7-plus",)),
        ("moon7", "moon-7", ()),
        ("harbour/moon-7", "moon-7", ()),
        ("ship moon-7", "moon-7", ("moon-7-plus",)),
        ("moon 7 20m", "moon-7", ()),
        ("moon", "moon-7", ("moon-7-plus",)),
        ("plus", "moon-7-plus", ()),
        ("large", "star-1-large", ()),
        ("50m", "star-1-large", ()),
        ("star", "star-1-small", ("star-1-large",)),
        ("star one", "star-1-small", ()),
    ],
)
def test_what_is_meant(typed: str, name: str, others: tuple[str, ...]) -> None:
    assert SHIPS.resolve(typed) == Resolved(name, typed, others)


def test_several_are_listed_and_none_is_chosen() -> None:
    with pytest.raises(AmbiguousName, match=r"'star 1' fits 2 ships: star-1-small, star-1-large\.") as caught:
        SHIPS.resolve("star 1")
    assert caught.value.candidates == ("star-1-small", "star-1-large")


def test_the_beginning_of_a_word_is_not_the_word() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'comets'"):
        SHIPS.resolve("comet")


@pytest.mark.parametrize("typed", ["", "  ", "-", "m", "7", "ship"])
def test_too_little_to_go_by(typed: str) -> None:
    with pytest.raises(UnknownName):
        SHIPS.resolve(typed)


def test_what_is_said_about_it() -> None:
    assert SHIPS.resolve("moon-7").note is None
    assert SHIPS.resolve("Moon-7").note is None
    assert SHIPS.resolve("star").note == "'star' resolved to star-1-small (also: star-1-large)"
    assert SHIPS.resolve("plus").note == "'plus' resolved to moon-7-plus"


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("moon", ("moon-7", "moon-7-plus")),
        ("star", ("star-1-small", "star-1-large")),
        ("star-1", ("star-1-small", "star-1-large")),
        ("MOON 7", ("moon-7",)),
        ("plus", ("moon-7-plus",)),
        ("sun", ()),
    ],
)
def test_every_entry_that_may_be_meant(typed: str, names: tuple[str, ...]) -> None:
    assert SHIPS.fitting(typed) == names
