"""Pages as a browser's parser sees them, and what in them could run or fetch something."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img"}
_EXECUTABLE = {
    "script", "iframe", "object", "embed", "applet", "frame", "frameset", "link", "base", "form", "input", "button",
    "video", "audio", "source", "foreignobject", "animate", "set", "use", "image", "math", "template", "portal",
    "textarea", "select", "marquee", "svg:script",
}  # fmt: skip
_ADDRESSES = {"href", "src", "action", "formaction", "data", "xlink:href", "poster", "background", "srcset", "ping"}
_OWN_ADDRESS = re.compile(r"^(#[\w-]+|\./[\w./%~-]+|data:image/png;base64,[A-Za-z0-9+/=]+)$")


@dataclass
class Node:
    """An element of a page."""

    name: str
    attributes: dict[str, str]
    parent: "Node | None" = None
    children: "list[Node]" = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def find(self, name: str, **wanted: str) -> "list[Node]":
        found = [inner for child in self.children for inner in (child, *child.find("*"))]
        return [
            node
            for node in found
            if name in ("*", node.name)
            and all(v in node.attributes.get(k.rstrip("_"), "").split() for k, v in wanted.items())
        ]


class Page(HTMLParser):
    """The tree of a page, as lenient as a browser: an end tag closes what it can."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.root = self.open = Node("", {})
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs}, self.open)
        self.open.children.append(node)
        if tag not in VOID:
            self.open = node

    def handle_endtag(self, tag: str) -> None:
        node: Node | None = self.open
        while node is not None and node.name != tag:
            node = node.parent
        if node is not None and node.parent is not None:
            self.open = node.parent

    def handle_data(self, data: str) -> None:
        node: Node | None = self.open
        while node is not None:
            node.pieces.append(data)
            node = node.parent


def dangers(document: str) -> list[str]:
    """Whatever could execute or fetch: elements, attributes and addresses that our own pages have no use for."""
    found = []
    for node in Page(document).root.find("*"):
        if node.name in _EXECUTABLE:
            found.append(f"<{node.name}>")
        for name, value in node.attributes.items():
            if name.startswith("on"):
                found.append(f"{node.name} {name}")
            elif name in _ADDRESSES and not _OWN_ADDRESS.match(value):
                found.append(f"{node.name} {name}={value[:60]}")
            elif name in ("style", "srcdoc"):
                found.append(f"{node.name} {name}")
        if node.name == "meta" and node.attributes.get("http-equiv", "").lower() == "refresh":
            found.append("refresh")
    return found


def policy_of(document: str) -> dict[str, str]:
    """The page's content security policy by directive."""
    metas = [m for m in Page(document).root.find("meta") if m.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert len(metas) == 1, "one policy"
    parts = (part.strip().partition(" ") for part in metas[0].attributes["content"].split(";"))
    return {name: value for name, _, value in parts}
