"""A frozen LoRA that is on in training, off in samples, and never part of what is trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from foretune.choices.adapter import ADAPTER_FILE
from foretune.core.errors import Refused
from foretune.models.foreign_lora import read_lora
from foretune.models.locating import open_family
from foretune.step.building import attach_method
from foretune.step.methods.training_adapter import without_training_adapter
from foretune.step.weights import checksums
from foretune.trace.tracing import StepSizes, trace_step
from tests.step.methods.kinds import KINDS, adapter_of, disturb, written
from tests.step.methods.test_methods import predict, run_steps
from tests.step.small_steps import NUM_TEXT_TOKENS, SIDE_PX, small_experiment, small_step

TinyPipeline = Callable[..., Path]

# Other layers than what is trained, and some of the same.
HELPER = {"kind": "lora", "rank": 3, "alpha": 6, "targets": ["to_q", "proj_mlp"]}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_on_unless_it_is_switched_off(kind: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path, HELPER)
    alone = small_step(folder, KINDS[kind])
    helped = small_step(folder, {**KINDS[kind], "training_adapter": str(tmp_path)})
    for small in (alone, helped):
        disturb(adapter_of(small))
        small.step.denoiser.eval()
    assert helped.method.trained().keys() == alone.method.trained().keys()
    assert checksums(helped.method.trained()) == checksums(alone.method.trained())
    assert set(adapter_of(helped).weights()) == set(adapter_of(alone).weights())
    on = predict(helped)
    assert not torch.allclose(on, predict(alone), atol=1e-3)
    with without_training_adapter(helped.step.denoiser):
        torch.testing.assert_close(predict(helped), predict(alone), rtol=1e-5, atol=1e-6)
    assert torch.equal(predict(helped), on)


def test_what_it_adds_is_what_its_own_run_computed(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path, HELPER, seed=8)
    its_own = small_step(folder, HELPER)
    disturb(adapter_of(its_own), seed=8)
    helped = small_step(folder, {**KINDS["lora"], "training_adapter": str(tmp_path)})
    torch.testing.assert_close(predict(helped), predict(its_own), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["lora", "dora", "lokr", "oft"])
@pytest.mark.parametrize("numbers", ["none", "nf4"])
def test_it_is_frozen_and_has_the_type_of_the_base(
    kind: str, numbers: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path, HELPER)
    small = small_step(
        folder,
        {**KINDS[kind], "training_adapter": str(tmp_path)},
        train={"precision": "bf16"},
        levers={"gradient_checkpointing": 1.0},
        quantize={"denoiser": numbers},
    )
    frozen = {name: p for name, p in small.method.frozen().items() if ".training_adapter." in name}
    assert len(frozen) == 2 * sum(name.endswith("lora_A.weight") for name in load_file(tmp_path / ADAPTER_FILE))
    assert {p.dtype for p in frozen.values()} == {torch.bfloat16}
    assert {p.dtype for p in small.method.trained().values()} == {torch.float32}
    before, trained = checksums(small.method.frozen()), checksums(small.method.trained())
    run_steps(small.step, small, num=3)
    assert checksums(small.method.frozen()) == before
    after = checksums(small.method.trained())
    assert [name for name in after if after[name] == trained[name]] == []


@pytest.mark.parametrize("kind", ["lora", "lokr"])
def test_on_meta_it_has_the_same_shapes_and_its_weights_are_what_it_adds_to_the_memory(
    kind: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path, HELPER)
    family = open_family(folder)
    experiment = small_experiment({**KINDS[kind], "training_adapter": str(tmp_path)})
    on_meta, real = family.denoiser_on_meta(torch.float32), family.load_denoiser(folder, torch.float32)
    for denoiser in (on_meta, real):
        attach_method(experiment, family, denoiser)
    assert {name: p.shape for name, p in on_meta.named_parameters()} == {
        name: p.shape for name, p in real.named_parameters()
    }
    sizes = StepSizes(batch_size=1, height_px=SIDE_PX, width_px=SIDE_PX, num_text_tokens=NUM_TEXT_TOKENS)
    helped, alone = (trace_step(asked, family, sizes, "cpu") for asked in (experiment, small_experiment(KINDS[kind])))
    added = sum(tensor.numel() for tensor in load_file(tmp_path / ADAPTER_FILE).values())
    assert helped.num_params - alone.num_params == added
    assert helped.num_trained_params == alone.num_trained_params


def renamed(directory: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The file of another program: tensors changed, settings left out."""
    tensors = load_file(directory / ADAPTER_FILE)
    (directory / ADAPTER_FILE).unlink()
    save_file(change(tensors), directory / "someones.safetensors")


def test_a_file_of_another_program_with_alphas_or_without(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """Without settings alpha is the rank, unless the file says it tensor by tensor."""
    folder = tiny_pipeline("flux")
    found = {}
    for name, alpha in (("settings", 6), ("alphas", 6), ("nothing", 3)):
        written(folder, tmp_path / name, {**HELPER, "alpha": alpha})
    renamed(
        tmp_path / "alphas",
        lambda tensors: (
            tensors | {k.replace("lora_A.weight", "alpha"): torch.tensor(6.0) for k in tensors if "lora_A" in k}
        ),
    )
    renamed(tmp_path / "nothing", lambda tensors: tensors)
    for name in ("settings", "alphas", "nothing"):
        found[name] = predict(small_step(folder, {**KINDS["lora"], "training_adapter": str(tmp_path / name)}))
    torch.testing.assert_close(found["settings"], found["alphas"], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found["settings"], found["nothing"], atol=1e-4)
    written(folder, tmp_path / "weaker", {**HELPER, "alpha": 3})
    weaker = predict(small_step(folder, {**KINDS["lora"], "training_adapter": str(tmp_path / "weaker")}))
    assert torch.equal(found["nothing"], weaker)


@pytest.mark.parametrize("name", ["sd1", "sdxl"])
def test_a_file_for_a_unet_in_the_names_of_kohyas_scripts(
    name: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    """Read by us, it adds what it adds when the model's own pipeline loads it."""
    folder = tiny_pipeline(name)
    family = open_family(folder)
    pipeline: Any = family.load_pipeline(folder, torch.float32)
    generator, rank = torch.Generator().manual_seed(0), 3
    layers = {
        key: module
        for key, module in pipeline.unet.named_modules()
        if key.endswith(("attn1.to_q", "attn2.to_v", "attn1.to_out.0"))
    }
    tensors: dict[str, torch.Tensor] = {}
    for key, layer in layers.items():
        named = f"lora_unet_{key.replace('.', '_')}"
        rows, columns = layer.weight.shape
        tensors[f"{named}.lora_down.weight"] = torch.randn(rank, columns, generator=generator)
        tensors[f"{named}.lora_up.weight"] = torch.randn(rows, rank, generator=generator)
        tensors[f"{named}.alpha"] = torch.tensor(1.5)
    save_file(tensors, tmp_path / "kohya.safetensors")
    stored = read_lora(family, tmp_path)
    config = stored.config
    assert isinstance(config, LoraConfig)
    pipeline.load_lora_weights(tmp_path, weight_name="kohya.safetensors", adapter_name="theirs")
    assert len(stored.weights) == 2 * len(layers)
    for key in layers:
        loaded = pipeline.unet.get_submodule(key)
        theirs = loaded.get_delta_weight("theirs")
        up, down = (stored.weights[f"{key}.lora_{side}.weight"] for side in "BA")
        torch.testing.assert_close(up @ down * config.lora_alpha / config.r, theirs, rtol=1e-5, atol=1e-6)


def test_ranks_may_differ_from_layer_to_layer(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path, HELPER)
    first = "transformer.transformer_blocks.0.attn.to_q"

    def halved(tensors: dict[str, Any]) -> dict[str, Any]:
        cut = {f"{first}.lora_A.weight": tensors[f"{first}.lora_A.weight"][:1].clone()}
        return tensors | cut | {f"{first}.lora_B.weight": tensors[f"{first}.lora_B.weight"][:, :1].clone()}

    renamed(tmp_path, halved)
    small = small_step(folder, {**KINDS["lora"], "training_adapter": str(tmp_path)})
    layer: Any = small.method.denoiser.get_submodule(first.removeprefix("transformer."))
    assert layer.lora_A["training_adapter"].weight.shape[0] == 1
    assert layer.scaling["training_adapter"] == 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda tensors: {}, "is not a plain LoRA"),
        (
            lambda tensors: {k.replace("to_q", "to_z"): v for k, v in tensors.items()},
            "is for another model: no layer of this flux model is named '.*to_z'",
        ),
        (
            lambda tensors: {k: v[:, :-1].clone() if "lora_A" in k else v for k, v in tensors.items()},
            r"is for another model: .* is of shape \[3, 47\] there and \[3, 48\] here",
        ),
        (
            lambda tensors: tensors | {"text_encoder.x.lora_A.weight": torch.zeros(1, 1)},
            r"changes more than the denoiser \(text_encoder.x",
        ),
        (
            lambda tensors: tensors | {"transformer.x.lora_magnitude_vector": torch.zeros(1)},
            "is not a plain LoRA",
        ),
    ],
)
def test_what_is_no_lora_of_this_model_is_refused(
    spoil: Callable[[dict[str, Any]], dict[str, Any]], said: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path, HELPER)
    renamed(tmp_path, spoil)
    with pytest.raises(Refused, match=said):
        small_step(folder, {**KINDS["lora"], "training_adapter": str(tmp_path)})


def test_another_kind_or_two_files_are_refused(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("flux")
    written(folder, tmp_path / "loha", KINDS["loha"])
    with pytest.raises(Refused, match="is not a plain LoRA"):
        small_step(folder, {**KINDS["lora"], "training_adapter": str(tmp_path / "loha")})
    for name in ("one", "two"):
        save_file({"a": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(Refused, match=r"holds 2 \.safetensors files; expected a folder with one LoRA"):
        small_step(folder, {**KINDS["lora"], "training_adapter": str(tmp_path)})
