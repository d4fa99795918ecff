"""The Experiment: what is asked. Choices only, no derived number."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from foretune.choices.data import Data
from foretune.choices.earlier_keys import (
    as_hashed,
    dotted_keys,
    lost_choices,
    mixed_keys,
    with_current_keys,
    without_removed_keys,
)
from foretune.choices.method import Lora, Method
from foretune.choices.quantize import Quantize
from foretune.choices.running import Parallel, Profile, Save, Tracker, Validate
from foretune.choices.section import INCIDENTAL, LATER, is_later_default, question_in
from foretune.choices.training import Levers, ObjectiveChoice, Optimizer, Train
from foretune.core.values.base import Upgrade, Value, WrongFormat, content_hash

Risk = Literal["distilled-base"]


def _with_fp32_weights(body: dict[str, Any]) -> dict[str, Any]:
    """Version 1 knew no other weights, and nothing that makes up for rounding."""
    train, optimizer = body.get("train", {}), body.get("optimizer", {})
    return {**body, "train": {**train, "weights": "fp32"}, "optimizer": {**optimizer, "compensation": "none"}}


def _with_new_choices(body: dict[str, Any]) -> dict[str, Any]:
    """Version 2 had one optimizer, LoRA, checkpoints of single blocks and a base in 16 bits; all are the defaults."""
    return body


def _with_vae_tiling(body: dict[str, Any]) -> dict[str, Any]:
    """Version 3 ran autoencoders on whole images, which is the default."""
    return body


def _with_follow_links(body: dict[str, Any]) -> dict[str, Any]:
    """Version 4 followed every link of a data folder; those that lead out of it are asked for since."""
    return body


def _with_current_keys(body: dict[str, Any]) -> dict[str, Any]:
    """Version 5 had other names for some keys."""
    if mixed := mixed_keys(dotted_keys(body)):
        raise WrongFormat(f"{'. '.join(mixed)}.")
    return with_current_keys(body)


def _without_removed_keys(body: dict[str, Any]) -> dict[str, Any]:
    """Version 6 had choices that are gone; only their defaults are still there."""
    if lost := lost_choices(body):
        raise WrongFormat(f"{'. '.join(lost)}.")
    return without_removed_keys(body)


def _with_sharding(body: dict[str, Any]) -> dict[str, Any]:
    """Version 7 ran in one process, which is the default."""
    return body


def _with_asynchronous_saves(body: dict[str, Any]) -> dict[str, Any]:
    """Version 8 waited for its saves, which is the default."""
    return body


def _with_gather_dtype(body: dict[str, Any]) -> dict[str, Any]:
    """Version 9 gathered sharded weights as they are, in fp32. It trained on all buckets, which is the default."""
    parallel, train = body.get("parallel", {}), body.get("train", {})
    is_mixed = train.get("precision", "bf16") == "bf16" and train.get("weight_dtype", "fp32") == "fp32"
    is_full = body.get("method", {}).get("kind") == "full"
    if parallel.get("sharding", "none") == "none" or not (is_mixed and is_full):
        return body
    return {**body, "parallel": {"gather_dtype": "fp32", **parallel}}


def _with_clips(body: dict[str, Any]) -> dict[str, Any]:
    """Version 10 trained on images, squares unless there were buckets; that is still the default of image models."""
    return body


def _with_prefetch(body: dict[str, Any]) -> dict[str, Any]:
    """Version 11 copied swapped blocks when they ran; copying them ahead changes speed and memory, no result."""
    return body


def _with_shards(body: dict[str, Any]) -> dict[str, Any]:
    """Version 12 had no data of the kind `shards`; everything that it could say means the same."""
    return body


def _with_encoded_data(body: dict[str, Any]) -> dict[str, Any]:
    """Version 13 read images and clips only, which is the default."""
    return body


def _with_chosen_rows(body: dict[str, Any]) -> dict[str, Any]:
    """Version 14 read all rows of a data set, which is the default."""
    return body


class Experiment(Value):
    """One fine-tuning, as asked for. Everything that follows is computed from it and from the catalogue."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)
    upgrades: ClassVar[Mapping[int, Upgrade]] = {
        1: _with_fp32_weights,
        2: _with_new_choices,
        3: _with_vae_tiling,
        4: _with_follow_links,
        5: _with_current_keys,
        6: _without_removed_keys,
        7: _with_sharding,
        8: _with_asynchronous_saves,
        9: _with_gather_dtype,
        10: _with_clips,
        11: _with_prefetch,
        12: _with_shards,
        13: _with_encoded_data,
        14: _with_chosen_rows,
    }

    name: Annotated[str, INCIDENTAL] = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the folder of its runs: up to 100 letters, digits, ".", "_" and "-", starting with a letter or digit."""
    model: Annotated[str, INCIDENTAL] = Field(min_length=1, examples=["flux.1-dev"])
    """A catalogue name, a Hub id (owner/name or owner/name@revision), or a local folder in the diffusers layout."""
    method: Method = Field(default=Lora(), examples=[{"kind": "lora", "rank": 16}])
    """What is trained: all weights, or an adapter."""
    data: Data = Field(examples=[{"kind": "folder", "path": "./paintings"}])
    """The training images or clips: source, size, buckets, cropping, caption dropout."""
    train: Train = Field(examples=[{"steps": 1000}])
    """Length, batch size, precision, seed, gradient clipping, EMA."""
    objective: ObjectiveChoice = ObjectiveChoice()
    """The loss: timestep sampling, shift, weighting."""
    optimizer: Optimizer = Optimizer()
    """Optimizer, learning rate and schedule."""
    quantize: Annotated[Quantize, LATER] = Quantize()
    """Quantised base and text encoders (int8, fp8, nf4)."""
    levers: Levers = Levers()
    """Memory against speed: gradient checkpointing, caching, offload, block swap, compile."""
    validation: Validate = Field(default=Validate(), alias="validate")
    """Samples and held-out loss during training."""
    save: Annotated[Save, INCIDENTAL] = Save()
    """How often checkpoints are written, and how many are kept."""
    parallel: Annotated[Parallel, INCIDENTAL] = Parallel()
    """Which device, how many, how many threads."""
    profile: Annotated[Profile | None, INCIDENTAL, LATER] = None
    """Profile a few steps of the run. Left out: no profiling."""
    track: Annotated[tuple[Tracker, ...], INCIDENTAL] = ()
    """Experiment trackers that receive loss, speed and samples."""
    accept: Annotated[tuple[Risk, ...], INCIDENTAL] = ()
    """Risks that Foretune refuses unless they are listed here."""

    @property
    def gathers_in_bf16(self) -> bool:
        """Whether whole weights exist in bf16 only, and their shards in fp32: FSDP2's mixed precision."""
        train, parallel = self.train, self.parallel
        is_mixed = train.precision == "bf16" and train.weight_dtype == "fp32" and self.method.kind == "full"
        return is_mixed and parallel.sharding != "none" and parallel.gather_dtype == "bf16"

    def whole_hash(self) -> str:
        """Equal when everything asked is equal, paths and devices included, in whichever version it was written."""
        content = as_hashed(_without_later_defaults(self))
        return content_hash({"format": "Experiment", "format_version": 1, **content})

    def question_hash(self, data_fingerprint: str, model_fingerprint: str) -> str:
        """Equal across machines: the model, method, data, objective and hyperparameters.

        Data and model count by their content, wherever they lie and whatever they are called there. The batch counts
        as the product that makes one optimizer step, so that one device with accumulation and several without answer
        the same question.
        """
        asked = as_hashed(question_in(self))
        content = {"data": [data_fingerprint, asked["data"]], "model": model_fingerprint}
        return content_hash({**asked, **content, "samples": self.samples_per_step()})

    def shows_speed(self, step: int) -> bool:
        """Whether the step of this number, counted from 0, runs at the speed of the run: no profiler slows it."""
        return self.profile is None or not self.profile.slows(step)

    def samples_per_step(self) -> int:
        """Samples whose gradients make one optimizer step, over all devices."""
        return self.train.batch_size * self.train.gradient_accumulation * self.parallel.devices


def _without_later_defaults(section: BaseModel) -> dict[str, Any]:
    data = json.loads(section.model_dump_json(by_alias=True))
    for name, field in type(section).model_fields.items():
        key, inner = field.alias or name, getattr(section, name)
        if is_later_default(section, name):
            del data[key]
        elif isinstance(inner, BaseModel):
            data[key] = _without_later_defaults(inner)
    return dict(data)
