"""YAML is read safely, nothing is lost, and words stay words."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.config.yaml_files import load_mapping, parse, what_is_wrong
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
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
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
