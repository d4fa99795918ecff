"""What an encoded set depends on, and how an experiment that would have cached something else is refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.choices.section import question_in
from foretune.core.errors import UserError
from foretune.core.input_files import shown
from foretune.data.buckets import Bucket
from foretune.data.cache import component_fingerprint
from foretune.data.encoded import open_encoded
from foretune.training.encoding import VAE_DTYPE, EncoderPlan

_HANDLED = {
    *("resolution", "num_frames", "max_text_tokens", "flip", "held_out"),  # below, by what they lead to
    *("caption_dropout", "only_largest_bucket", "shuffle_shards"),  # choose among what is stored
}
_WEIGHTS = "weights of "
_MOST_DIGITS = 12
_MOST_NAMED = 4


def encoded_settings(experiment: Experiment, plan: EncoderPlan, size: Bucket) -> dict[str, Any]:
    """Returns everything beside the samples that the caches of a training depend on, by the key that a user can change.

    Training that agrees in all of it would cache the same tensors.
    """
    data, family = experiment.data, plan.family
    flip = "never" if data.flip == 0 else "always" if data.flip == 1 else "sometimes"
    # Held-out samples are cut at the centre and not mirrored. That is what training stores, too, unless:
    is_held_out_apart = data.crop == "random" or flip == "always"
    sides = f"{size.width_px}x{size.height_px}"
    settings = {
        **{f"data.{key}": value for key, value in question_in(data).items() if key not in _HANDLED},
        "data.resolution": sides if size.num_frames is None else f"{sides}, {size.num_frames} frames",
        "data.flip": flip,
        "data.held_out": data.held_out if is_held_out_apart else "any",
        "train.seed": experiment.train.seed if data.crop == "random" else "any",
        "levers.vae_tiling": plan.vae_tiling,
        "dtype of latents": _text(VAE_DTYPE),
        **_weights(plan, "vae", *(family.image_parts if family.takes_first_frame else ())),
    }
    if family.image_parts:
        settings["dtype of first frames (train.precision)"] = _text(plan.text_dtype)
    if family.text_parts and experiment.levers.cache_text:
        settings |= {
            "family": family.name,
            "dtype of embeddings (train.precision)": _text(plan.text_dtype),
            "data.max_text_tokens": plan.num_text_tokens,
            "quantize.text_encoders": plan.text_numbers,
            "empty captions": family.text_settings(plan.folder) or "encoded",
            **_weights(plan, *family.text_parts),
        }
    return settings


def with_encoded_set(plan: EncoderPlan, experiment: Experiment, size: Bucket) -> EncoderPlan:
    """Returns the plan of encoders with the set that `data.encoded` names, if any, once it is known to fit."""
    if experiment.data.encoded is None:
        return plan
    require_cached(experiment, plan)
    if plan.family.takes_first_frame and experiment.validation.prompts:
        raise UserError(
            "data.encoded: clips are sampled from first frames, and an encoded set has no images. Set "
            "validate.prompts=[], or leave data.encoded out."
        )
    encoded = open_encoded(experiment.data)
    asked = encoded_settings(experiment, plan, size)
    # Embeddings in the set that are not used do no harm.
    found = encoded.facts.settings
    if not experiment.levers.cache_text:
        found = {key: value for key, value in found.items() if key in asked}
    if differences := differences_between(found, asked):
        raise UserError(
            f"data.encoded: {encoded.place} was encoded for another experiment: {differences}. Change the experiment, "
            f"or encode for it: foretune data encode EXPERIMENT.yaml ANOTHER_OUTPUT"
        )
    return dataclasses.replace(plan, encoded=encoded)


def require_cached(experiment: Experiment, plan: EncoderPlan) -> None:
    """Raises where training would not use what a set holds."""
    if not plan.family.has_latents:
        raise UserError(
            f"{plan.family.name} models have no autoencoder and train on pixels, so nothing can be encoded before. "
            "Leave data.encoded out; to read the images from elsewhere: foretune data pack"
        )
    if not experiment.levers.cache_latents:
        raise UserError(
            "levers.cache_latents=false encodes images at each step, and an encoded set holds latents. Set "
            "levers.cache_latents=true, or leave data.encoded out."
        )


def differences_between(found: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Returns what differs between a set and an experiment, in words; empty if nothing does."""
    keys = [key for key in dict.fromkeys((*asked, *found)) if found.get(key) != asked.get(key)]
    texts = [_difference(key, found.get(key), asked.get(key)) for key in keys]
    more = f"; and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return "; ".join(texts[:_MOST_NAMED]) + more


def _difference(key: str, found: Any, asked: Any) -> str:
    if key.startswith(_WEIGHTS):
        digits = [shown(str(value))[:_MOST_DIGITS] if value else "none" for value in (found, asked)]
        return f"the set has other {key} ({digits[0]}) than this model ({digits[1]})"
    return f"{shown(key)} is {shown(str(found))} in the set and {shown(str(asked))} here"


def _weights(plan: EncoderPlan, *parts: str) -> dict[str, str]:
    return {f"{_WEIGHTS}{part}": component_fingerprint(plan.folder / part, plan.cache_dir) for part in parts}


def _text(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
