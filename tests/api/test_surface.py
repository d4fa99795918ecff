"""The package's front door: every verb, nothing imported before it is used."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import foretune as ft
from foretune.cli.main import app

# Verbs of the command line that are several functions, or have another name than theirs.
_OTHER_NAMES = {
    "list": ("list_models", "list_devices", "list_methods"),
    "data": (
        "encode_data",
        "import_archive",
    ),
    "import": ("import_config",),
    "import-accelerate": ("import_accelerate",),
    "import-checkpoint": ("import_checkpoint",),
}
_MOST_IMPORT_S = 0.060
_NUM_STARTS = 10


def verbs() -> list[str]:
    names = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    return [name for name in names if name is not None]


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_is_a_function(verb: str) -> None:
    for name in _OTHER_NAMES.get(verb, (verb,)):
        function = getattr(ft, name)
        assert inspect.isfunction(function), name
        assert name in ft.__all__


def test_all_that_is_offered_is_there_and_explained() -> None:
    for name in ft.__all__:
        assert inspect.getdoc(getattr(ft, name)), f"{name} has no docstring"
    assert set(ft.__all__) <= set(dir(ft))


def test_every_parameter_is_explained() -> None:
    lacking = []
    for name in ft.__all__:
        found = getattr(ft, name)
        if not inspect.isfunction(found):
            continue
        parameters = list(inspect.signature(found).parameters)
        text = inspect.getdoc(found) or ""
        explained = [parameter for parameter in parameters if f"{parameter}:" in text or "Arguments as for" in text]
        if len(parameters) > 1:
            lacking += [f"{name}({parameter})" for parameter in parameters if parameter not in explained]
    assert lacking == []


def test_the_type_checker_sees_what_is_offered() -> None:
    """The names are listed twice: for those who read the types, and for those who import at run time."""
    tree = ast.parse(Path(ft.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {
        alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert declared == ft._MODULE_OF
    assert sorted(declared) == sorted(ft.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'finetune'"):
        getattr(ft, "finetune")  # noqa: B009 - a type checker would refuse the name


def processor_s(code: str) -> float:
    """Of a fresh process that runs this."""
    ended = f"{code}\nimport time; print(time.process_time())"
    answer = subprocess.run([sys.executable, "-c", ended], capture_output=True, text=True, check=True)
    return float(answer.stdout)


def test_importing_is_quick(report_figure: Callable[[str], None]) -> None:
    bare_s = min(processor_s("") for _ in range(_NUM_STARTS))
    with_it_s = min(processor_s("import foretune") for _ in range(_NUM_STARTS))
    report_figure(f"import foretune: {1000 * (with_it_s - bare_s):.0f} ms over a bare interpreter")
    assert with_it_s - bare_s < _MOST_IMPORT_S


def test_importing_brings_nothing_heavy() -> None:
    code = (
        "import sys, foretune; print([m for m in ('torch', 'pydantic', 'rich', 'typer', 'yaml') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
