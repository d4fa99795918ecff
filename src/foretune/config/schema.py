"""The JSON schema of an experiment, for editors that complete and check while one types."""

from typing import Any

from foretune.choices.experiment import Experiment


def experiment_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of an experiment file."""
    schema = Experiment.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Foretune experiment",
    }
