"""What is trained, what is frozen, and what an adapter does to the base."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from foretune.catalog import TRAINABLE
from foretune.choices.method import METHODS as CHOICES
from foretune.core.errors import Refused
from foretune.models.locating import open_family
from foretune.step.methods import METHODS
from foretune.step.training_step import TrainingStep
from foretune.step.weights import checksums
from tests.step.small_steps import SmallStep, made_batch, small_step

TinyPipeline = Callable[..., Path]

ATTENTION_ENDS = ("to_q", "to_k", "to_v", "to_out.0")


def lora(**settings: Any) -> dict[str, Any]:
    return {"kind": "lora", "rank": 2, **settings}


def predict(small: SmallStep) -> torch.Tensor:
    """What the denoiser answers to a fixed question."""
    with torch.no_grad():
        batch = made_batch(small.family, 2)
        noisy = small.step.clean(batch)
        time = small.step.objective.time(small.step.objective.noise_level(batch.uniform))
        return small.family.predict(small.step.denoiser, noisy, time, batch.conditioning or {}, guidance_scale=3.5)


def run_steps(step: TrainingStep, small: SmallStep, first: int = 0, num: int = 2) -> list[float]:
    batches = [made_batch(small.family, 2, seed=index) for index in range(num)]
    return [float(step(first + index, 1e-2, [batch], 1).loss) for index, batch in enumerate(batches)]


def test_every_method_that_can_be_asked_for_can_be_applied() -> None:
    assert set(METHODS) == set(CHOICES)


@pytest.mark.parametrize("name", TRAINABLE)
def test_full_trains_every_weight_with_a_gradient(name: str, tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline(name), "full")
    without = [key for key in small.method.frozen() if not key.startswith(small.family.without_gradient())]
    assert without == []
    assert len(small.method.frozen()) == (6 if name == "qwen_image" else 0)
    every = [key for key, _ in small.method.denoiser.named_parameters()]
    assert [key for key in every if key not in small.method.frozen()] == list(small.method.trained())
    before = checksums(small.step.trained)
    run_steps(small.step, small)
    after = checksums(small.step.trained)
    assert [key for key in before if before[key] == after[key]] == []


@pytest.mark.parametrize("name", TRAINABLE)
def test_lora_trains_adapters_on_the_attention_and_nothing_else(name: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name)
    base = open_family(folder).load_denoiser(folder, torch.float32)
    small = small_step(folder, lora())
    trained = small.method.trained()
    linears = [key for key, module in base.named_modules() if isinstance(module, torch.nn.Linear)]
    adapted = [key for key in linears if key.endswith(ATTENTION_ENDS)]
    assert adapted
    assert set(trained) == {f"{key}.lora_{half}.default.weight" for key in adapted for half in "AB"}
    before = checksums(small.method.frozen())
    assert sorted(before.values()) == sorted(checksums(dict(base.named_parameters())).values())
    trained_before = checksums(trained)
    run_steps(small.step, small)
    assert checksums(small.method.frozen()) == before
    after = checksums(trained)
    assert [key for key in after if after[key] == trained_before[key]] == []


@pytest.mark.parametrize("name", TRAINABLE)
def test_a_new_adapter_changes_nothing(name: str, tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline(name), lora(alpha=7))
    layers = [module for module in small.method.denoiser.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(enabled=False)
    untouched = predict(small)
    # Of the same weights elsewhere in memory, a product may be rounded differently.
    torch.testing.assert_close(untouched, predict(small_step(tiny_pipeline(name), "full")), rtol=1e-5, atol=1e-6)
    for layer in layers:
        layer.enable_adapters(enabled=True)
    assert torch.equal(predict(small), untouched)
    run_steps(small.step, small, num=1)
    assert not torch.equal(predict(small), untouched)


def test_alpha_over_rank_scales_the_update(tiny_pipeline: TinyPipeline) -> None:
    """One adapted layer: what the adapter adds is alpha / rank times B A x."""
    folder = tiny_pipeline("flux")
    added = {}
    for alpha in (None, 2.0, 6.0, 0.5):
        layer: Any = small_step(folder, lora(alpha=alpha)).method.denoiser.get_submodule(
            "transformer_blocks.0.attn.to_q"
        )
        with torch.no_grad():
            layer.lora_B["default"].weight.fill_(0.3)
            x = torch.linspace(-1, 1, layer.in_features)[None]
            added[alpha] = layer(x) - layer.base_layer(x)
            by_hand = (alpha or 2.0) / 2 * x @ layer.lora_A["default"].weight.T @ layer.lora_B["default"].weight.T
        torch.testing.assert_close(added[alpha], by_hand, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(added[None], added[2.0], rtol=1e-5, atol=1e-6)


def test_chosen_targets_and_rank(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), lora(rank=3, targets=["proj_mlp", "attn.to_q"]))
    trained = small.method.trained()
    assert {key.split(".lora_")[0].rsplit(".", 1)[-1] for key in trained} == {"proj_mlp", "to_q"}
    assert {p.shape[0] for key, p in trained.items() if "lora_A" in key} == {3}


@pytest.mark.parametrize("name", TRAINABLE)
def test_unknown_target_is_refused_with_the_names_there_are(name: str, tiny_pipeline: TinyPipeline) -> None:
    with pytest.raises(Refused) as refusal:
        small_step(tiny_pipeline(name), lora(targets=["to_q", "to_qq"]))
    text = str(refusal.value)
    assert "no layer of this" in text
    assert "'to_qq'" in text
    for end in ATTENTION_ENDS:
        assert end in text.split("end in:")[1]


def test_part_of_a_name_is_not_a_target(tiny_pipeline: TinyPipeline) -> None:
    with pytest.raises(Refused, match="'o_q'"):
        small_step(tiny_pipeline("flux"), lora(targets=["o_q"]))


def test_seed_decides_the_adapter_and_the_global_generator_is_left_alone(tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    state = torch.get_rng_state()
    sums = []
    for seed in (0, 0, 1):
        small = small_step(folder, lora(), train={"seed": seed})
        assert torch.equal(torch.get_rng_state(), state)
        sums.append(checksums({k: p for k, p in small.step.trained.items() if "lora_A" in k}))
    assert sums[0] == sums[1]
    assert all(sums[0][key] != sums[2][key] for key in sums[0])


def test_dropout_follows_from_seed_and_step(tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")

    def losses(seed: int, first: int, disturb: bool = False) -> list[float]:
        small = small_step(folder, lora(dropout=0.5), train={"seed": seed})
        with torch.no_grad():
            for key, parameter in small.step.trained.items():
                parameter.fill_(0.05 if "lora_A" in key else 0.02)
        if disturb:
            torch.rand(17)
        return run_steps(small.step, small, first=first)

    assert losses(0, 0) == losses(0, 0, disturb=True)
    assert losses(0, 0) != losses(1, 0)
    assert losses(0, 0) != losses(0, 5)


def test_dropout_differs_between_the_batches_of_a_step(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), lora(dropout=0.5))
    with torch.no_grad():
        for parameter in small.step.trained.values():
            parameter.fill_(0.05)
    drawn = []
    for micro in (0, 1, 0):
        small.step._seed_dropout(3, micro)
        drawn.append(torch.rand(4).tolist())
    assert drawn[0] == drawn[2] != drawn[1]


def test_dropout_of_the_model_itself_is_seeded_too(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """The DDPM paper's own CIFAR-10 training has one; without a seed a resumed run would go another way."""
    shutil.copytree(tiny_pipeline("ddpm"), tmp_path / "model")
    config = tmp_path / "model" / "unet" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dropout": 0.1}))
    small = small_step(tmp_path / "model", "full")
    assert small.method.has_dropout
    assert small.step.dropout_seed == 0
    again = small_step(tmp_path / "model", "full")
    torch.rand(3)
    assert run_steps(small.step, small) == run_steps(again.step, again)


@pytest.mark.parametrize("method", ["full", lora(), lora(dropout=0.0)])
def test_no_dropout_no_seed(method: Any, tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), method)
    assert not small.method.has_dropout
    assert small.step.dropout_seed is None
    state = torch.get_rng_state()
    run_steps(small.step, small, num=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_saved_weights_are_put_back_or_refused(tiny_pipeline: TinyPipeline) -> None:
    small = small_step(tiny_pipeline("flux"), lora())
    saved = {key: torch.full_like(parameter, 0.25) for key, parameter in small.method.trained().items()}
    small.method.load_trained(saved)
    assert all(torch.equal(parameter, saved[key]) for key, parameter in small.method.trained().items())
    key = next(iter(saved))
    before = checksums(small.method.trained())
    for wrong in (
        {k: v for k, v in saved.items() if k != key},
        {**saved, "stranger": torch.zeros(1)},
        {**saved, key: torch.zeros(1, 1)},
    ):
        with pytest.raises(AssertionError, match="do not belong to this model"):
            small.method.load_trained({k: v * 0 for k, v in wrong.items()})
        assert checksums(small.method.trained()) == before
