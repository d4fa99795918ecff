"""Nothing that a person reads has a phrase of the table in CONTRIBUTING.md."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "CONTRIBUTING.md"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md")
SOURCES = sorted((ROOT / "src").rglob("*.py"))
SCOPES = {"pages": {"page"}, "pages, messages": {"page", "message"}, "everywhere": {"page", "message", "docstring"}}
_ROW = re.compile(r"^\| (`[^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Rule:
    phrase: str
    instead: str
    kinds: frozenset[str]
    """Of text in which the phrase is not written: page, message, docstring."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """The phrase as whole words, in either case, also over the end of a line."""
        words = r"\s+".join(map(re.escape, self.phrase.split()))
        return re.compile(rf"(?<!\w){words}(?!\w)", re.IGNORECASE)


@dataclass(frozen=True)
class Passage:
    kind: str
    path: Path
    line: int
    """Where the text begins."""
    text: str

    def line_at(self, position: int) -> int:
        """Newlines in a message are escapes, so that it is reported at its first line."""
        return self.line + (self.text.count("\n", 0, position) if self.kind != "message" else 0)


def rules_of(guide: str) -> list[Rule]:
    """One rule for each phrase in backticks in the first column of the table."""
    return [
        Rule(phrase, instead, frozenset(SCOPES[scope]))
        for phrases, instead, scope in _ROW.findall(guide)
        for phrase in re.findall(r"`([^`]+)`", phrases)
    ]


def passages_of(path: Path, source: str) -> Iterator[Passage]:
    """The string literals of a module, docstrings and those under attributes apart from the others."""
    tree = ast.parse(source)
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    docstrings = {id(value) for value in statements if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = "docstring" if id(node) in docstrings else "message"
            yield Passage(kind, path, node.lineno, node.value)


def broken(rules: Sequence[Rule], passages: Sequence[Passage]) -> list[str]:
    """Each occurrence of a phrase with its place and what to write instead."""
    return [
        f"{passage.path}:{passage.line_at(match.start())}: `{rule.phrase}`; write instead: {rule.instead}"
        for passage in passages
        # Few texts have any of the phrases, and this is much quicker than a search by pattern.
        for words in [" ".join(passage.text.lower().split())]
        for rule in rules
        if passage.kind in rule.kinds and rule.phrase.lower() in words
        for match in rule.pattern.finditer(passage.text)
    ]


RULES = rules_of(GUIDE.read_text(encoding="utf-8"))


def test_the_table_is_read() -> None:
    table = GUIDE.read_text(encoding="utf-8").partition("| do not write |")[2].partition("\n\n")[0]
    assert len({rule.instead for rule in RULES}) == len(table.splitlines()) - 2
    assert {"mend", "so manieth", "computed again"} <= {rule.phrase for rule in RULES}


def test_pages() -> None:
    pages = [Passage("page", path.relative_to(ROOT), 1, path.read_text(encoding="utf-8")) for path in PAGES]
    guide = _ROW.sub("", GUIDE.read_text(encoding="utf-8"))
    assert broken(RULES, [*pages, Passage("page", GUIDE.relative_to(ROOT), 1, guide)]) == []


def test_sources() -> None:
    texts = [
        passage for path in SOURCES for passage in passages_of(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    ]
    assert broken(RULES, texts) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""It is computed\nagain."""\nsaid = f"{1} is\\n computed again"\n', [3, 1]),
        ('class A:\n    b: int\n    """Every so\n    manieth block."""\n', [3]),
        ('# mend\nmend = "amend, mending"\n', []),
        ('raise ValueError(\n    "x"\n    "what to mend"\n)\n', [2]),
    ],
)
def test_control_planted_phrases_are_found(source: str, lines: list[int]) -> None:
    """In messages and docstrings, over the end of a line, in parts of other strings; not in names or longer words."""
    everywhere = [Rule(rule.phrase, rule.instead, frozenset(SCOPES["everywhere"])) for rule in RULES]
    found = broken(everywhere, list(passages_of(Path("planted.py"), source)))
    assert sorted(int(line.split(":")[1]) for line in found) == sorted(lines)


def test_control_a_phrase_is_allowed_where_it_is_not_checked_yet() -> None:
    rule = Rule("told", "reported", frozenset(SCOPES["pages, messages"]))
    docstring, message = passages_of(Path("planted.py"), '"""What is told."""\nTEXT = "It is told."\n')
    assert broken([rule], [docstring]) == []
    assert broken([rule], [message]) == ["planted.py:2: `told`; write instead: reported"]
