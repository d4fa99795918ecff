"""The stored formats of the values: where their frozen files are, and what shape a format has.

When a value's format changes, a new version of it begins:

1. Add the step from the last version to the value's `upgrades`.
2. Type `python -m tests.core.formats`. It writes `frozen/<Name>-v<N>.json` (the last version's file, upgraded) and
   `frozen/<Name>-v<N>.shape.json` (which fields there are and what each may hold).
3. Look at both, and commit them. A frozen file is never changed afterwards, and never removed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.core.values import Comparison, Evaluation, Finding, InferencePlan, Plan, RunRecord, StepTrace, Value
from foretune.core.values.device_profile import DeviceProfile

FROZEN = Path(__file__).parent / "frozen"
VALUES: dict[str, type[Value]] = {
    value.__name__: value
    for value in (Experiment, StepTrace, Plan, InferencePlan, RunRecord, Comparison, Evaluation, Finding, DeviceProfile)
}
# What a schema says beyond which data are right: a change of these is no change of the format.
_REMARKS = frozenset({"title", "description", "default", "examples", "discriminator"})


def frozen_file(name: str, version: int) -> Path:
    return FROZEN / f"{name}-v{version}.json"


def shape_file(name: str, version: int) -> Path:
    return FROZEN / f"{name}-v{version}.shape.json"


def shape(value: type[Value]) -> dict[str, str]:
    """Every field of a format by its path, with what it may hold: {"phases[].name": "string"}."""
    schema = value.model_json_schema(by_alias=True)
    found: dict[str, set[str]] = {}
    for path, holds in _leaves(schema, schema.get("$defs", {}), ""):
        found.setdefault(path, set()).add(holds)
    return {path: " | ".join(sorted(found[path])) for path in sorted(found)}


def _leaves(schema: dict[str, Any], definitions: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = {**definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices is not None:
        for choice in choices:
            # Kinds of a section have fields of their own, so each gets a path of its own.
            name = choice.get("$ref", "").rpartition("/")[2]
            yield from _leaves(choice, definitions, f"{path}<{name}>" if "oneOf" in schema else path)
    elif "properties" in schema:
        for key, inner in schema["properties"].items():
            yield from _leaves(inner, definitions, f"{path}.{key}" if path else key)
    elif isinstance(schema.get("additionalProperties"), dict):
        yield path, f"keys {_text(schema.get('propertyNames', {}))}"
        yield from _leaves(schema["additionalProperties"], definitions, f"{path}.*")
    elif "prefixItems" in schema:
        for position, inner in enumerate(schema["prefixItems"]):
            yield from _leaves(inner, definitions, f"{path}[{position}]")
    elif "items" in schema:
        limits = _text({key: value for key, value in schema.items() if key != "items"})
        yield path, limits
        yield from _leaves(schema["items"], definitions, f"{path}[]")
    else:
        yield path, _text(schema)


def _text(schema: dict[str, Any]) -> str:
    kept = {key: value for key, value in schema.items() if key not in _REMARKS and key != "type"}
    words = [str(schema.get("type", "anything")), *(f"{key}={json.dumps(kept[key])}" for key in sorted(kept))]
    return " ".join(words)


def freeze() -> list[Path]:
    """Writes the frozen files that are lacking; those that are there stay as they are."""
    written = []
    for name, value in VALUES.items():
        version = value.format_version()
        sample, fields = frozen_file(name, version), shape_file(name, version)
        if not sample.exists():
            last = value.from_json(frozen_file(name, version - 1).read_text(encoding="utf-8"))
            sample.write_text(last.to_json(), encoding="utf-8")
            written.append(sample)
        if not fields.exists():
            fields.write_text(json.dumps(shape(value), indent=2) + "\n", encoding="utf-8")
            written.append(fields)
    return written


if __name__ == "__main__":
    for path in freeze():
        print(f"wrote {path}")
