"""Names of archives: what is refused anywhere, and which names would meet on some file systems."""

import pytest

from foretune.data.archives.names import NamesTaken, is_hidden, plain, why_refused


@pytest.mark.parametrize(
    "name", ["a.png", "./a.png", "a b/c (1).png", "caf\u00e9/\u5199.png", "a..b/c...png", "-rf.png"]
)
def test_ordinary_names(name: str) -> None:
    assert why_refused(name) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "no name"),
        ("/a.png", "absolute"),
        ("\\a.png", "absolute"),
        ("C:a.png", "absolute"),
        ("..", "leads out"),
        ("a/../b.png", "leads out"),
        ("a\\..\\b.png", "leads out"),
        ("a\0.png", "characters"),
        ("a\u202e.png", "characters"),
        ("a\udcff.png", "characters"),
        ("ab:c.png", "characters"),
        ("com1.png", "Windows"),
        ("a /b.png", "Windows"),
        ("x" * 201, "too long"),
        ("a/" * 20 + "b.png", "too long"),
    ],
)
def test_names_that_are_refused(name: str, words: str) -> None:
    assert words in (why_refused(name) or "")


@pytest.mark.parametrize(
    ("first", "second"),
    [("a.png", "A.png"), ("\u00e9.png", "e\u0301.png"), ("d/a.png", "D/b.png"), ("a", "a/b"), ("a/b", "a"), ("a", "a")],
)
def test_names_that_would_meet(first: str, second: str) -> None:
    taken = NamesTaken()
    assert taken.why_not(first) is None
    assert taken.why_not(second)
    assert taken.why_not("other.png") is None


def test_hidden_and_plain() -> None:
    assert [is_hidden(name) for name in (".a.png", "a/.b/c.png", "__MACOSX/a.png", "./a.png", "a.b/c.png")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert plain("./a//b/./c.png") == "a/b/c.png"
