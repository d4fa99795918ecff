"""The JSON schema that editors complete and check experiment files with."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from foretune.choices.experiment import Experiment
from foretune.choices.method import METHODS
from foretune.config import experiment_schema

SCHEMA = experiment_schema()
# The words of JSON Schema 2020-12 that occur here; `discriminator` is OpenAPI's, and checkers pass over it.
WORDS = {
    "$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "default", "description", "discriminator",
    "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "items", "maxItems", "maximum", "minItems", "minLength",
    "minimum", "oneOf", "pattern", "prefixItems", "properties", "required", "title", "type",
}  # fmt: skip
TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}


def schemas(schema: dict[str, Any], path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema."""
    yield path, schema
    for word in ("$defs", "properties"):
        for name, inner in schema.get(word, {}).items():
            yield from schemas(inner, f"{path}/{word}/{name}")
    for word in ("anyOf", "oneOf", "prefixItems"):
        for position, inner in enumerate(schema.get(word, ())):
            yield from schemas(inner, f"{path}/{word}/{position}")
    if isinstance(schema.get("items"), dict):
        yield from schemas(schema["items"], f"{path}/items")


ALL = dict(schemas(SCHEMA))


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def test_it_says_which_dialect_it_is() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "Foretune experiment"
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA


@pytest.mark.parametrize("path", ALL)
def test_every_schema_is_well_formed(path: str) -> None:
    schema = ALL[path]
    assert set(schema) <= WORDS
    assert schema.get("type", "object") in TYPES
    assert {"type", "$ref", "anyOf", "oneOf"} & set(schema), "it says what it holds"
    assert set(schema.get("required", ())) <= set(schema.get("properties", {}))
    if "$ref" in schema:
        kind, _, name = schema["$ref"].rpartition("/")
        assert kind == "#/$defs"
        assert name in SCHEMA["$defs"]
    for reference in schema.get("discriminator", {}).get("mapping", {}).values():
        assert reference.rpartition("/")[2] in SCHEMA["$defs"]


def test_no_object_takes_unknown_keys() -> None:
    objects = {path: schema for path, schema in ALL.items() if "properties" in schema}
    assert len(objects) > 10
    assert [path for path, schema in objects.items() if schema.get("additionalProperties") is not False] == []


def test_every_key_explains_itself() -> None:
    keys = {path: schema for path, schema in ALL.items() if "/properties/" in path and path.count("/properties/") == 1}
    silent = [
        path
        for path, schema in keys.items()
        if path.rpartition("/properties/")[2].isidentifier()
        and not path.endswith("/kind")
        and not (schema.get("description") or resolved(schema).get("description"))
    ]
    assert silent == []


def test_top_level_keys_are_those_of_files() -> None:
    assert set(SCHEMA["properties"]) == {field.alias or name for name, field in Experiment.model_fields.items()}
    assert SCHEMA["required"] == ["model", "data", "train"]


def test_every_default_is_shown() -> None:
    for name, field in Experiment.model_fields.items():
        shown = SCHEMA["properties"][field.alias or name]
        assert ("default" in shown) == (not field.is_required()), name
    defaults = {key: schema.get("default") for key, schema in SCHEMA["$defs"]["Optimizer"]["properties"].items()}
    assert defaults == {
        "kind": "adamw",
        "lr": 1e-4,
        "schedule": "constant",
        "warmup_steps": 0,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.01,
        "compensation": "none",
    }


def test_a_section_with_kinds_needs_one() -> None:
    sources = {"folder", "cifar10", "huggingface", "clips", "shards", "shapes"}
    for key, kinds in (("method", set(METHODS)), ("data", sources)):
        choices = [resolved(choice) for choice in SCHEMA["properties"][key]["oneOf"]]
        assert {choice["properties"]["kind"]["const"] for choice in choices} == kinds
        assert all("kind" in choice["required"] for choice in choices)
    assert "kind" not in SCHEMA["$defs"]["Optimizer"].get("required", ())


def test_examples_are_right() -> None:
    base = {"model": "flux.1-dev", "data": {"kind": "shapes"}, "train": {"steps": 1}}
    shown = {key: schema["examples"] for key, schema in SCHEMA["properties"].items() if "examples" in schema}
    assert {"model", "method", "data", "train"} <= set(shown)
    for key, examples in shown.items():
        for example in examples:
            Experiment.model_validate({**base, key: example})
