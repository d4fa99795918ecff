"""What every page has in common: its head, its policy, its style, and the container of its tables."""

from pathlib import Path

from foretune.reports.markup import Content, Markup, tag
from foretune.reports.part_colours import colour_rules

_STYLES = Path(__file__).parent


def document(title: str, *body: Content, style: str, has_pictures: bool = False, refresh_s: float | None = None) -> str:
    """The whole HTML document: no scripts, nothing from elsewhere. `style` names the style sheet beside the shared one.

    Pictures are part of the page itself, so nothing but data is allowed for them either. `refresh_s`: after how long
    the browser loads the page again.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    if has_pictures:
        policy += "; img-src data:"
    sheets = "".join((_STYLES / name).read_text(encoding="utf-8") for name in ("page.css", style))
    return "<!DOCTYPE html>\n" + tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            [] if refresh_s is None else tag("meta", http_equiv="refresh", content=f"{max(1, round(refresh_s))}"),
            tag("title", title),
            # Text of our own: a style sheet is not escaped.
            tag("style", Markup(f"{sheets}{colour_rules()}")),
        ),
        "\n",
        tag("body", *body),
        lang="en",
    )


def scrolled(table: Markup, name: str) -> Markup:
    """A table that is wider than the screen scrolls inside this container, which shows that it does; keys reach it."""
    hint = tag("p", "Scroll sideways to see all columns →", class_="scroll-hint", aria_hidden="true")
    return tag("div", table, hint, class_="scrolled", role="region", aria_label=name, tabindex="0")


def number(text: str) -> Markup:
    """A cell with a number in it."""
    return tag("td", text, class_="number")


def swatch(colour: str | None) -> Markup:
    """A square of the colour, beside the name that it stands for."""
    return tag("span", class_=f"swatch {colour}") if colour else Markup("")
