"""Run in a clean process: loads an export the way any user of diffusers and peft would, and writes down what arrived.

It knows nothing of the training: the family is used only to name the pipeline and its arguments.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from foretune.data.buckets import Bucket
from foretune.models.adapters import adapter_state, load_adapter
from foretune.models.locating import open_family
from foretune.training.sampling import SampleRequest, sample


def check(question: dict[str, Any]) -> None:
    """Loads base and adapter, or the exported pipeline; samples; saves the tensors and the image."""
    dtype = getattr(torch, question["dtype"])
    base, export = Path(question["base"]), Path(question["export"])
    family = open_family(base)
    pipeline = family.load_pipeline(base if question["kind"] == "adapter" else export, dtype)
    if question["kind"] == "adapter":
        load_adapter(family, pipeline, export)
    denoiser = getattr(pipeline, family.denoiser_part)
    state = adapter_state(denoiser) if question["kind"] == "adapter" else denoiser.state_dict()
    request = SampleRequest(
        prompts=(question["prompt"],),
        seed=question["seed"],
        num_inference_steps=question["num_inference_steps"],
        size=Bucket.from_facts(question),
        num_text_tokens=question["num_text_tokens"],
    )
    arrived = {name: tensor.detach().float().cpu().numpy() for name, tensor in state.items()}
    image = sample(family, pipeline, request)[0]
    save_file({**arrived, "image": np.ascontiguousarray(image)}, question["answer"])


if __name__ == "__main__":
    check(json.load(sys.stdin))
