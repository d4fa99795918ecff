"""The Experiment: what is asked. Choices only, no derived number."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from foretune.choices.data import Data
from foretune.choices.method import Lora, Method
from foretune.choices.running import Parallel, Save, Tracker, Validate
from foretune.choices.training import Levers, ObjectiveChoice, Optimizer, Train
from foretune.core.values.base import Value, content_hash

Risk = Literal["distilled-base"]

# What can differ between two runs that answer the same question.
_NOT_THE_QUESTION = ("name", "save", "parallel", "track", "accept")
_NOT_THE_QUESTION_IN = {
    "data": ("path", "folders", "cache_dir", "num_workers"),
    "levers": ("gradient_checkpointing", "cache_latents", "cache_text"),
    "train": ("batch_size", "gradient_accumulation"),
    "validate": ("every",),
}


class Experiment(Value):
    """One fine-tuning, as asked for. Everything that follows is computed from it and from the catalogue."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)

    name: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Names the folder of its runs."""
    model: str = Field(min_length=1)
    """A catalogue name, a hub id (owner/name, or owner/name@revision), or a local folder in the diffusers layout."""
    method: Method = Field(default_factory=Lora)
    data: Data
    train: Train
    objective: ObjectiveChoice = Field(default_factory=ObjectiveChoice)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    levers: Levers = Field(default_factory=Levers)
    validation: Validate = Field(default_factory=Validate, alias="validate")
    save: Save = Field(default_factory=Save)
    parallel: Parallel = Field(default_factory=Parallel)
    track: tuple[Tracker, ...] = ()
    accept: tuple[Risk, ...] = ()
    """Risks that were pointed out and are taken all the same."""

    def to_mapping(self) -> dict[str, Any]:
        body = self.model_dump(mode="json", by_alias=True)
        return {"format": "Experiment", "format_version": self.format_version(), **body}

    def whole_hash(self) -> str:
        """Equal when everything asked is equal, paths and devices included."""
        return content_hash(self.to_mapping())

    def question_hash(self, data_fingerprint: str) -> str:
        """Equal across machines: the model, method, data, objective and hyperparameters.

        The batch counts as the product that makes one optimizer step, so that one device with accumulation and
        several without answer the same question.
        """
        body = self.to_mapping()
        samples_per_step = self.samples_per_step()
        for section, fields in _NOT_THE_QUESTION_IN.items():
            body[section] = {key: value for key, value in body[section].items() if key not in fields}
        question = {key: value for key, value in body.items() if key not in _NOT_THE_QUESTION}
        return content_hash({**question, "data_fingerprint": data_fingerprint, "samples_per_step": samples_per_step})

    def samples_per_step(self) -> int:
        """Samples whose gradients make one optimizer step, over all devices."""
        return self.train.batch_size * self.train.gradient_accumulation * self.parallel.devices
