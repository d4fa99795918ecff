"""Every option, verb and key that a message advises exists, in the verb that the reader has in front of them.

A message of a module that several verbs use may name a bare `--option` only if all of those verbs have it; otherwise it
says which verb the option belongs to: `foretune compare A B --across-questions`.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import click
import typer
from pydantic import BaseModel

from foretune.choices.experiment import Experiment
from foretune.choices.study import StudyFile
from foretune.cli.main import app
from foretune.config.places import fields_by_key, sections_in
from tests.architecture.source_tree import PACKAGE, SOURCE, Module, Plant, by_name, imports_of, read_tree

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_VERB = re.compile(r"\bforetune ([a-z]+(?:-[a-z]+)*)\b(?! (?:is|was|has|needs|and|or|the)\b)")
_OTHER_PROGRAM = re.compile(r"\b(?:(?:docker|git|pip|uv) [a-z]+|sbatch|srun|torchrun) ")
_KEY = re.compile(r"(?<![\w./-])([a-z_]+(?:\.[a-z_0-9]+)+)=")
_MODULES = {"list": "listing", "import": "importing", "import-accelerate": "import_accelerate"}
_tree = cache(read_tree)


@cache
def _options() -> Mapping[str, frozenset[str]]:
    """The options of each verb, those of its own commands included."""
    commands: Mapping[str, click.Command] = vars(typer.main.get_command(app))["commands"]
    return {name: frozenset(_of(command)) for name, command in commands.items()}


def _of(command: click.Command) -> Iterator[str]:
    yield "--help"
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for inner in getattr(command, "commands", {}).values():
        yield from _of(inner)


def _messages(module: Module) -> Iterator[tuple[int, str]]:
    """Strings with a space in them: sentences, not the arguments of a program. `{}` stands for what is filled in."""
    inside = {id(part) for node in ast.walk(module.tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    if module.layer != "cli":
        # Docstrings of verbs are their help; others are for developers.
        inside |= {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(module.tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            text = node.value
        if " " in text:
            yield getattr(node, "lineno", 0), text


def _reached(verb: str, graph: Mapping[str, list[str]]) -> set[str]:
    """Modules that a verb uses. What another verb's module prints is that verb's."""
    others = [_MODULES.get(name, name) for name in _options() if name != verb]
    verbs = {f"foretune.cli.{name}" for name in others}
    own = f"foretune.cli.{_MODULES.get(verb, verb)}"
    found: set[str] = set()
    waiting = [own]
    while waiting:
        name = waiting.pop()
        if name in found or name not in graph or name in verbs:
            continue
        found.add(name)
        waiting += graph[name]
    return found


def wrong_options(source: Path) -> list[str]:
    """Options that do not exist in the verb they are advised for."""
    modules = by_name(_tree(source))
    graph = {module.name: [one.target for one in imports_of(module, modules)] for module in modules.values()}
    graph.pop(PACKAGE, None)  # it names the functions of all verbs, and every module may import it for its version
    reached = {verb: _reached(verb, graph) for verb in _options()}
    faults = []
    for module in modules.values():
        users = [verb for verb in _options() if module.name in reached[verb]]
        for line, text in _messages(module):
            for option in _OPTION.finditer(text):
                before = text[: option.start()]
                programs = [*_VERB.finditer(before), *_OTHER_PROGRAM.finditer(before)]
                last = max(programs, key=lambda found: found.start(), default=None)
                if last is not None and last.re is _OTHER_PROGRAM:
                    continue
                verbs = users if last is None else [last.group(1)]
                lacking = [verb for verb in verbs if option.group() not in _options().get(verb, ())]
                if lacking:
                    faults.append(f"{module.at(line)}: foretune {', '.join(lacking)} has no {option.group()}")
    return faults


def unknown_verbs(source: Path) -> list[str]:
    """Verbs that a message tells to type and that do not exist."""
    return [
        f"{module.at(line)}: foretune {verb}"
        for module in _tree(source)
        for line, text in _messages(module)
        for verb in re.findall(r"(?:Type|Run|Next|run): foretune ([a-z]+(?:-[a-z]+)*)", text)
        if verb not in _options()
    ]


def unknown_keys(source: Path) -> list[str]:
    """Keys of experiment and study files that a message advises and that do not exist."""
    known = {*_keys(Experiment), *_keys(StudyFile)}
    return [
        f"{module.at(line)}: {key}"
        for module in _tree(source)
        for line, text in _messages(module)
        for key in _KEY.findall(text)
        if key not in known
    ]


def _keys(section: type[BaseModel], before: str = "") -> Iterator[str]:
    for key, field in fields_by_key(section).items():
        yield before + key
        for inner in sections_in(field.annotation):
            yield from _keys(inner, f"{before}{key}.")


def test_messages_name_options_that_exist_where_they_are_read() -> None:
    assert wrong_options(SOURCE) == []


def test_messages_name_verbs_that_exist() -> None:
    assert unknown_verbs(SOURCE) == []


def test_messages_name_keys_that_exist() -> None:
    assert unknown_keys(SOURCE) == []


def test_the_checks_see_what_is_wrong(plant: Plant) -> None:
    source = plant(
        {
            "cli/gate.py": "from foretune.analyse import comparing",
            "cli/compare.py": "from foretune.analyse import comparing",
            "analyse/comparing.py": 'a = "Add --across-questions to it."\nb = f"Run: foretune gate {a} --run"\n'
            'c = "Run: foretune judge A"\nd = "Set train.bath_size=4 or train.batch_size=4, pip install --upgrade it"',
        }
    )
    shown = "src/foretune/analyse/comparing.py"
    assert wrong_options(source) == [
        f"{shown}:1: foretune gate has no --across-questions",
        f"{shown}:2: foretune gate has no --run",
    ]
    assert unknown_verbs(source) == [f"{shown}:3: foretune judge"]
    assert unknown_keys(source) == [f"{shown}:4: train.bath_size"]
