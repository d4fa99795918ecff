"""An adapter goes on where an earlier one ended, or says why it cannot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.core.errors import Refused, UserError
from foretune.models.locating import open_family
from foretune.step.building import attach_method
from tests.step.methods.kinds import KINDS, adapter_of, written
from tests.step.small_steps import small_experiment, small_step

TinyPipeline = Callable[..., Path]


@pytest.mark.parametrize("kind", KINDS)
def test_its_weights_are_where_the_new_one_begins(kind: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    weights = written(folder, tmp_path, KINDS[kind])
    begun = adapter_of(small_step(folder, {**KINDS[kind], "start_from": str(tmp_path)}))
    assert begun.weights().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in begun.weights().items())
    assert begun.trained().keys() == adapter_of(small_step(folder, KINDS[kind])).trained().keys()
    rounded = small_step(
        folder,
        {**KINDS[kind], "start_from": str(tmp_path)},
        train={"precision": "bf16", "weight_dtype": "bf16"},
        quantize={"denoiser": "int8"},
    )
    assert all(torch.equal(t, weights[name].bfloat16()) for name, t in adapter_of(rounded).weights().items())


def test_without_weights_it_is_checked_where_it_is(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    family = open_family(folder)

    def attach(place: str, **settings: Any) -> None:
        experiment = small_experiment({**KINDS["lora"], **settings, "start_from": str(tmp_path / place)})
        method = attach_method(experiment, family, family.denoiser_on_meta(torch.float32))
        assert all(parameter.is_meta for parameter in method.trained().values())

    written(folder, tmp_path / "here", KINDS["lora"])
    attach("nowhere")
    attach("here")
    with pytest.raises(Refused, match="holds kind lora, rank 4; the experiment asks for kind lora, rank 3"):
        attach("here", rank=3)


@pytest.mark.parametrize(
    ("there", "asked", "said"),
    [
        ("lora", KINDS["dora"], r"holds kind lora; the experiment asks for kind dora"),
        ("lora", KINDS["oft"], r"holds kind lora, rank 4, alpha 10; the experiment asks for kind oft, block_size 8"),
        ("loha", {**KINDS["loha"], "rank": 2}, r"holds kind loha, rank 4; the experiment asks for kind loha, rank 2"),
        ("rslora", {**KINDS["rslora"], "alpha": 1}, r"alpha 10; the experiment asks for kind rslora, alpha 1"),
        (
            "oft",
            {**KINDS["oft"], "targets": ["to_q", "to_k"]},
            r"targets to_k,to_out.0,to_q,to_v; the experiment asks for kind oft, targets to_k,to_q",
        ),
        ("lokr", KINDS["lokr whole"], r"full_matrix False, rank 2, alpha 5; .* full_matrix True, alpha / rank 2.5"),
    ],
)
def test_another_shape_is_refused_by_name(
    there: str, asked: dict[str, Any], said: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path, KINDS[there])
    with pytest.raises(Refused, match=f"method.start_from: .*{said}"):
        small_step(folder, {**asked, "start_from": str(tmp_path)})


def test_another_model_is_refused(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    written(tiny_pipeline("sd3"), tmp_path, KINDS["lora"])
    with pytest.raises(Refused, match=r"was made for another model than this flux: .* more of its tensors do not fit"):
        small_step(tiny_pipeline("flux"), {**KINDS["lora"], "start_from": str(tmp_path)})


def test_a_folder_without_one(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    with pytest.raises(UserError, match="holds no pytorch_lora_weights"):
        small_step(tiny_pipeline("flux"), {**KINDS["lora"], "start_from": str(tmp_path)})
