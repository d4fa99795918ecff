"""Elements of HTML and SVG, made so that text can never become markup."""

import html
from collections.abc import Iterable

_WITHOUT_END = frozenset({"meta", "br", "img"})


class Markup(str):
    """Text that is markup already. Whatever is not of this type is escaped where it is put into an element."""

    __slots__ = ()


Content = str | Iterable[str]


def tag(name: str, /, *contents: Content, **attributes: str | float | None) -> Markup:
    """One element. `class_` is the attribute class, `data_part` is data-part; an attribute that is None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _WITHOUT_END:
        assert not contents, f"<{name}> holds nothing"
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*contents)}</{name}>")


def join(*contents: Content) -> Markup:
    """The pieces one after another."""
    pieces: list[str] = []
    for content in contents:
        pieces += [content] if isinstance(content, str) else content
    return Markup("".join(piece if isinstance(piece, Markup) else html.escape(piece) for piece in pieces))


def _text(value: str | float) -> str:
    """Coordinates to a hundredth of a pixel: finer is not seen."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
