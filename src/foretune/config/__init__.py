"""YAML and key=value into an Experiment; every mistake at once, each with a suggestion. No torch."""

from foretune.config.reading import Asked, read_experiment
from foretune.config.schema import experiment_schema

__all__ = ["Asked", "experiment_schema", "read_experiment"]
