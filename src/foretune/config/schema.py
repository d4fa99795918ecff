"""The JSON schema of an experiment, for editors that complete and check while one types."""

from typing import Any

from foretune.choices.experiment import Experiment


def experiment_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of an experiment file."""
    schema = Experiment.model_json_schema(by_alias=True)
    for section in schema["properties"].values():
        for reference in section.get("discriminator", {}).get("mapping", {}).values():
            _require_kind(schema["$defs"][reference.rpartition("/")[2]])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Foretune experiment",
    }


def _require_kind(definition: dict[str, Any]) -> None:
    """In Python a section knows its own kind; in a file the kind is what tells which section it is."""
    definition["required"] = sorted({"kind", *definition.get("required", ())})
