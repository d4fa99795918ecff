"""YAML is read safely, nothing is lost, and words stay words."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.config.yaml_files import load_mapping, parse, parse_written, what_is_wrong
from foretune.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1.0e-4", 1e-4),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("3.", 3.0),
        (".inf", math.inf),
        ("10", 10),
        ("-3", -3),
        ("0x1F", 31),
        ("2:00:00", "2:00:00"),
        ("90:30", "90:30"),
        ("true", True),
        ("False", False),
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("y", "y"),
        ("null", None),
        ("~", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("bf16", "bf16"),
        ("flux.1-dev", "flux.1-dev"),
        ("e4", "e4"),
        ("'1e-4'", "1e-4"),
        ("[1, a, 2.5]", [1, "a", 2.5]),
        ("{a: {b: [c]}}", {"a": {"b": ["c"]}}),
    ],
)
def test_values(text: str, value: Any) -> None:
    read = parse(text)
    assert read == value
    assert type(read) is type(value)


def test_not_a_number() -> None:
    assert math.isnan(parse(".nan"))


def test_anchors_and_merges() -> None:
    assert parse("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}") == {"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: the key 'a' stands twice"),
        ("train:\n  steps: 1\n  steps: 2\n", "line 3, column 3: the key 'steps' stands twice"),
        ("train: {seed: 1, steps: 1, seed: 2}", "line 1, column 28: the key 'seed' stands twice"),
        ('a: 1\n"a": 2\n', "line 2, column 1: the key 'a' stands twice"),
        ("a: b: c\n", "line 1, column 5: mapping values are not allowed here"),
        ("\ta: 1\n", "line 1, column 1: found character '\\t' that cannot start any token"),
        ("a: [1\n", "line 2, column 1: expected ',' or ']'"),
        ("a: 1\n---\nb: 1\n", "line 2, column 1: but found another document"),
        ("[a]: 1", "line 1, column 1: found unhashable key"),
        ("{a: 1}: 2", "found unhashable key"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: \x07", "special characters are not allowed"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        parse(text)
    assert said in what_is_wrong(caught.value)
    assert "\n" not in what_is_wrong(caught.value)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: flux.1-dev\ntrain: {steps: 10}\n")
    assert load_mapping(path) == {"model": "flux.1-dev", "train": {"steps": 10}}


def test_a_file_that_is_not_there_names_the_command_that_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    with pytest.raises(UserError) as caught:
        load_mapping(path)
    assert str(caught.value) == f"{path} does not exist. Run: foretune init {path}"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder, not a file"):
        load_mapping(tmp_path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "just words\n", "5\n"])
def test_a_file_without_keys(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"x\.yaml should hold keys and values, such as `model: flux\.1-dev`"):
        load_mapping(path)


def test_a_file_that_is_not_yaml(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: flux.1-dev\n  train: {steps: 10}\n")
    with pytest.raises(UserError, match=r"x\.yaml cannot be read as YAML: line 2, column 8: mapping values"):
        load_mapping(path)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"model: \xff\xfe\n")
    with pytest.raises(UserError, match=r"x\.yaml is not text in UTF-8 \(invalid start byte at byte 7\)"):
        load_mapping(path)


def doubled(levels: int, first: str) -> str:
    """Each line is the one before, twice: a few lines that stand for 2 ** levels values."""
    lines = [f"a0: &a0 {first}", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, levels))]
    return "\n".join(lines) + "\n"


def merged(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, levels))]
    return "\n".join(lines) + "\n"


BOMBS = {
    "aliases": (doubled(60, "[x]"), "its aliases make more than"),
    "merges": (merged(60), "its aliases make more than"),
    "a long text, many times": (
        f"a: &a {'x' * 200_000}\nb: [{', '.join(['*a'] * 100)}]\n",
        "its aliases make more than",
    ),
    "itself": ("a: &a {b: *a}\n", "an alias stands in what it stands for"),
    "lists in lists": (f"a: {'[' * 100_000}", "it is nested too deeply"),
    "lists in lists by dashes": (f"a:\n  {'- ' * 100_000}x", "it is nested too deeply"),
    "half of a letter": ('a: "\\ud800"\n', "half of a character|invalid Unicode character"),
}


@pytest.mark.parametrize(("text", "reason"), BOMBS.values(), ids=list(BOMBS))
@pytest.mark.parametrize("parse_text", [parse, parse_written])
def test_what_would_grow_beyond_all_measure_is_refused(
    text: str, reason: str, parse_text: Callable[[str], object]
) -> None:
    with pytest.raises(yaml.YAMLError, match=reason):
        parse_text(text)


@pytest.mark.parametrize("parse_text", [parse, parse_written])
def test_aliases_and_merges_as_people_use_them(parse_text: Callable[[str], object]) -> None:
    text = "base: &base {lr: 1, steps: 2}\na: {<<: *base, steps: 3}\nb: [*base, *base]\n"
    base = {"lr": 1, "steps": 2}
    assert parse_text(text) == {"base": base, "a": {"lr": 1, "steps": 3}, "b": [base, base]}


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.yaml").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match=r"x\.yaml has 1024\.00 GiB; at most 1\.00 MiB are read"):
        load_mapping(tmp_path / "x.yaml")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    with pytest.raises(UserError, match=r"x\.yaml is a named pipe, not a file"):
        load_mapping(tmp_path / "x.yaml")
