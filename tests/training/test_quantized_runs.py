"""Quantised parts in a whole run: in its record, in its caches, in its samples."""

from pathlib import Path

import pytest
import torch

from foretune.choices.quantize import EncoderNumbers
from foretune.models.locating import open_family
from foretune.step.quantizing import QuantizedLinear
from foretune.training.encoding import EncoderPlan, encode_captions
from foretune.training.train import Trained
from tests.training.short_runs import PROMPT, losses_of, short_prepared, short_run

CAPTIONS = ("a red square", "")
# Of a tiny encoder's answer, as a share of its size.
MOST_ERROR = {"int8": 0.03, "float8": 0.12, "nf4": 0.3, "int8-bnb": 0.05}


def encoder_plan(folder: Path, cache_dir: Path, numbers: EncoderNumbers) -> EncoderPlan:
    return EncoderPlan(
        family=open_family(folder),
        folder=folder,
        device=torch.device("cpu"),
        text_dtype=torch.bfloat16,
        num_text_tokens=12,
        cache_dir=cache_dir,
        text_numbers=numbers,
    )


@pytest.mark.parametrize("numbers", list(MOST_ERROR))
def test_text_encoders_answer_nearly_the_same(tiny_pipeline, tmp_path, numbers) -> None:
    folder = tiny_pipeline("sd3")
    plain, quantised = (encoder_plan(folder, tmp_path, kind).load_text() for kind in ("none", numbers))
    for part in ("text_encoder", "text_encoder_2", "text_encoder_3"):
        module = getattr(quantised, part)
        assert any(isinstance(layer, QuantizedLinear) for layer in module.modules())
        assert sum(p.nbytes for p in module.parameters()) != sum(p.nbytes for p in getattr(plain, part).parameters())
    family = open_family(folder)
    expected, found = (encode_captions(family, encoders, CAPTIONS, 12) for encoders in (plain, quantised))
    for one, other in zip(found, expected, strict=True):
        for name, tensor in one.items():
            assert tensor.dtype == other[name].dtype
            error = (tensor.float() - other[name].float()).norm() / other[name].float().norm()
            assert 0 < error < MOST_ERROR[numbers], name


def test_captions_of_other_encoders_are_other_entries(tiny_pipeline, tmp_path) -> None:
    folder = tiny_pipeline("flux")
    plans = [encoder_plan(folder, tmp_path, kind) for kind in ("none", "int8", "float8", "nf4", "int8-bnb")]
    keys = {plan.text_lookup().text_key("a red square") for plan in plans}
    assert len(keys) == len(plans)


def test_the_record_says_what_was_done(tiny_pipeline, tmp_path) -> None:
    prepared = short_prepared(
        tiny_pipeline("flux"),
        tmp_path,
        method={"kind": "lora", "rank": 4},
        quantize={"denoiser": "float8-dynamic", "text_encoders": "int8"},
    )
    done = prepared.effective["quantized"]
    assert done["kind"] == "float8-dynamic"
    assert done["num_bytes"] < done["num_dense_bytes"]
    assert done["is_emulated"]
    assert "proj_out" in done["kept"]
    assert done["unfit"] == []


@pytest.mark.parametrize("caches_text", [True, False], ids=["cached", "live"])
def test_a_run_trains_samples_and_leaves_its_base_alone(tiny_pipeline, tmp_path, caches_text) -> None:
    def trained(work: Path) -> Trained:
        return short_run(
            tiny_pipeline("flux"),
            work,
            {"kind": "lora", "rank": 4},
            train={"steps": 2, "precision": "bf16"},
            quantize={"denoiser": "nf4", "text_encoders": "int8"},
            levers={"cache_text": caches_text},
            validate={"prompts": [PROMPT], "num_held_out": 2},
        )

    once = trained(tmp_path / "once")
    assert once.record.outcome.status == "finished"
    assert once.base_unchanged
    assert once.num_changed_tensors == once.num_trained_tensors
    assert list(once.run.samples.glob("*.png"))
    assert losses_of(trained(tmp_path / "again").run) == losses_of(once.run)
