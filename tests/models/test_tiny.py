"""Tiny pipelines: complete, small, the same bytes for the same seed, and fit to be trained on captions."""

import hashlib
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
import transformers
from diffusers import DiffusionPipeline
from torch.nn import functional as F

from foretune.catalog import FAMILY_FACTS
from foretune.choices.model import MODEL_SUFFIXES
from foretune.choices.tiny import TINY_VARIANTS
from foretune.core.errors import UnknownName
from foretune.models.locating import open_family
from foretune.models.tiny import write_tiny_pipeline
from foretune.models.tiny.tokenizers import (
    CAPTION_WORDS,
    build_clip_tokenizer,
    build_qwen_tokenizer,
    build_t5_tokenizer,
)
from tests.models.made_inputs import latent_shape, sampling_inputs, small_size

TinyPipeline = Callable[..., Path]

CASES = [(family, variant) for family, variants in TINY_VARIANTS.items() for variant in variants]
TEXT_CASES = [case for case in CASES if FAMILY_FACTS[case[0]].has_text]
WITH_VAE = [family for family in TINY_VARIANTS if FAMILY_FACTS[family].has_latents]
NUM_TEXT_TOKENS = 32

# Each differs from the first in a single word, except for the last, which has its words in another order.
CAPTIONS = [
    "a small red circle on blue",
    "a small green circle on blue",
    "a large red circle on blue",
    "a small red square on blue",
    "a small red circle on white",
    "a small blue circle on red",
]


def load(directory: Path) -> Any:
    pipeline = DiffusionPipeline.from_pretrained(directory, use_safetensors=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def sample(directory: Path, pipeline: Any, prompt: str) -> np.ndarray:
    """One image or clip with values in 0..1, of 64 x 64 px, or of 32 x 32 px by the family that takes no prompt."""
    generator, bound = torch.Generator().manual_seed(0), open_family(directory)
    if not bound.facts.has_text:
        return np.asarray(pipeline(num_inference_steps=3, generator=generator, output_type="np").images[0])
    output = pipeline(
        prompt=prompt,
        **sampling_inputs(bound, small_size(bound, 64, 64)),
        num_inference_steps=3,
        max_sequence_length=bound.own_text_tokens() if bound.text_is_fixed else NUM_TEXT_TOKENS,
        generator=generator,
        output_type="np",
    )
    return np.asarray(output.frames[0] if hasattr(output, "frames") else output.images[0])


def digests(directory: Path) -> dict[str, str]:
    """The SHA-256 of each file, by its path in the directory."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def encode_captions(directory: Path, captions: list[str]) -> dict[str, torch.Tensor]:
    """What the pipeline's denoiser gets of the captions."""
    family = open_family(directory)
    with torch.no_grad():
        num_tokens = family.own_text_tokens() if family.text_is_fixed else NUM_TEXT_TOKENS
        return family.encode_text(load(directory), captions, num_tokens)


def smallest_relative_distance(embeddings: torch.Tensor) -> float:
    """Of all pairs of rows, the least distance as a share of the pair's mean norm."""
    return min(
        float(2 * (first - second).norm() / (first.norm() + second.norm()))
        for first, second in itertools.combinations(embeddings.flatten(1), 2)
    )


def patchwork(num_images: int) -> torch.Tensor:
    """Images in -1..1 of 64 x 64 px: 16 px squares of random flat colours, off the grid of the latents."""
    colours = torch.rand(num_images, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return colours.repeat_interleave(16, 2).repeat_interleave(16, 3)[:, :, 4:68, 4:68]


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_loads_without_network_and_samples(
    family: str, variant: str, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a socket was opened")

    directory = tiny_pipeline(family, variant)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    pipeline = load(directory)
    assert type(pipeline) is open_family(directory).pipeline_class()
    image = sample(directory, pipeline, CAPTIONS[0])
    side_px = 64 if FAMILY_FACTS[family].has_text else 32
    assert image.shape[-3:] == (side_px, side_px, 3)
    assert np.isfinite(image).all()
    assert image.std() > 0.05


@pytest.mark.parametrize("family", TINY_VARIANTS)
def test_loads_through_the_class_of_the_family(family: str, tiny_pipeline: TinyPipeline) -> None:
    pipeline_class = getattr(diffusers, FAMILY_FACTS[family].pipeline_class_name)
    pipeline_class.from_pretrained(tiny_pipeline(family), use_safetensors=True)


@pytest.mark.takes_turns
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_seed_decides_the_bytes(family: str, variant: str, tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    first = digests(tiny_pipeline(family, variant))
    torch.rand(7)  # the state of the caller's generator must not matter
    again = digests(write_tiny_pipeline(family, tmp_path / "again", seed=0, variant=variant))
    other = digests(write_tiny_pipeline(family, tmp_path / "other", seed=1, variant=variant))
    assert again == first
    weights = [name for name in first if name.endswith(".safetensors")]
    assert all(other[name] != first[name] for name in weights)
    assert all(other[name] == first[name] for name in first.keys() - set(weights))


def test_another_process_writes_the_same_bytes(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from foretune.models.tiny import write_tiny_pipeline\n"
        "for family in sys.argv[2:]:\n"
        "    write_tiny_pipeline(family, pathlib.Path(sys.argv[1]) / family)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *TINY_VARIANTS], check=True, capture_output=True)
    for family in TINY_VARIANTS:
        assert digests(tmp_path / family) == digests(tiny_pipeline(family))


@pytest.mark.parametrize("family", TINY_VARIANTS)
def test_callers_random_state_is_left_alone(family: str, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    write_tiny_pipeline(family, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_files_are_few_small_and_safe(family: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    directory = tiny_pipeline(family, variant)
    files = [path for path in directory.rglob("*") if path.is_file()]
    suffixes = {path.suffix for path in files}
    assert suffixes - {".jinja"} == {".json", ".safetensors"}
    assert suffixes <= set(MODEL_SUFFIXES), "a file that would not be downloaded from a hub"
    assert sum(path.stat().st_size for path in files) < 3_000_000
    components = load(directory).components.values()
    models = [component for component in components if isinstance(component, torch.nn.Module)]
    num_params = sum(parameter.numel() for model in models for parameter in model.parameters())
    assert 300_000 < num_params < 750_000
    index = json.loads((directory / "model_index.json").read_text())
    named = {name for name, entry in index.items() if isinstance(entry, list) and entry[0] is not None}
    assert named == {path.name for path in directory.iterdir() if path.is_dir()}


def test_variants_differ_as_the_published_ones_do(tiny_pipeline: TinyPipeline) -> None:
    def config(family: str, variant: str, part: str) -> dict[str, Any]:
        name = "scheduler_config.json" if part == "scheduler" else "config.json"
        loaded: dict[str, Any] = json.loads((tiny_pipeline(family, variant) / part / name).read_text())
        return loaded

    assert config("flux", "dev", "transformer")["guidance_embeds"] is True
    assert config("flux", "schnell", "transformer")["guidance_embeds"] is False
    assert config("flux", "dev", "scheduler")["use_dynamic_shifting"] is True
    assert config("flux", "schnell", "scheduler")["use_dynamic_shifting"] is False
    assert [config("flux", name, "scheduler")["shift"] for name in ("dev", "schnell")] == [3.0, 1.0]
    assert config("sd3", "3.5", "transformer")["qk_norm"] == "rms_norm"
    assert config("sd3", "3.5", "transformer")["dual_attention_layers"] == [0, 1]
    assert config("sd3", "3", "transformer")["qk_norm"] is None
    assert config("sd3", "3", "transformer")["dual_attention_layers"] == []


@pytest.mark.parametrize(("family", "variant"), TEXT_CASES)
def test_captions_stay_apart(family: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    encoded = encode_captions(tiny_pipeline(family, variant), CAPTIONS)
    assert encoded
    for name, tensor in encoded.items():
        if not tensor.is_floating_point():
            continue  # a mask says how long a caption is
        assert smallest_relative_distance(tensor) > 0.1, name
        # None drowns another, nor the noise of deviation 1 that the denoiser adds them to.
        # Where captions are padded with zeros, what is not padded counts.
        shown = tensor[tensor.abs().amax(-1) > 0] if tensor.dim() > 2 else tensor
        assert 0.5 < float(shown.std()) < 4, name


@pytest.mark.takes_turns
@pytest.mark.parametrize(("family", "variant"), TEXT_CASES)
def test_captions_change_the_image(family: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    directory = tiny_pipeline(family, variant)
    pipeline = load(directory)
    images = [sample(directory, pipeline, caption) for caption in CAPTIONS[:2]]
    assert np.abs(images[0] - images[1]).max() > 1e-4


@pytest.mark.parametrize("family", [family for family in WITH_VAE if FAMILY_FACTS[family].is_video])
def test_video_vae_keeps_colours_and_their_movement(family: str, tiny_pipeline: TinyPipeline) -> None:
    bound = open_family(tiny_pipeline(family))
    vae: Any = bound.load_vae(tiny_pipeline(family), torch.float32)
    num_frames = 2 * bound.frames_per_latent() + 1
    # Patches of flat colours that move to the right, a pixel per frame.
    still = torch.cat([patchwork(4), patchwork(4)], dim=3)
    clips = torch.stack([still[..., frame : frame + 64] for frame in range(num_frames)], dim=2)
    with torch.no_grad():
        moments = bound.encode_images(vae, clips)
        latents = bound.latents_from_moments(moments, torch.zeros_like(moments.chunk(2, dim=1)[0]))
        decoded = bound.images_from_latents(vae, latents)
    assert decoded.shape == clips.shape
    assert latents.mean((0, 2, 3, 4)).abs().max() < 0.5
    assert 0.4 < latents.std((0, 2, 3, 4)).min() < latents.std((0, 2, 3, 4)).max() < 1.5
    blurred = [F.avg_pool2d(clip.transpose(1, 2).flatten(0, 1), 8) for clip in (decoded, clips)]
    assert float(torch.corrcoef(torch.stack([one.flatten() for one in blurred]))[0, 1]) > 0.9
    # The last frame is nearer to the last than to the first: time is kept, too.
    ends = [(decoded[:, :, -1] - clips[:, :, place]).abs().mean() for place in (0, -1)]
    assert ends[1] < 0.8 * ends[0]


@pytest.mark.parametrize("family", [family for family in WITH_VAE if not FAMILY_FACTS[family].is_video])
def test_vae_keeps_the_colours(family: str, tiny_pipeline: TinyPipeline) -> None:
    bound = open_family(tiny_pipeline(family))
    vae = bound.load_vae(tiny_pipeline(family), torch.float32)
    images = patchwork(16)
    with torch.no_grad():
        moments = bound.encode_images(vae, images)
        noise = torch.randn(16, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        latents = bound.latents_from_moments(moments, noise)
        decoded = bound.images_from_latents(vae, latents)
    assert latents.shape == (16, 4, 8, 8)
    assert latents.mean((0, 2, 3)).abs().max() < 0.5
    assert latents.std((0, 2, 3)).min() > 0.5
    assert latents.std((0, 2, 3)).max() < 1.5
    assert float(1 - (decoded - images).square().mean() / images.var()) > 0.4


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_gradients_reach_every_weight(family: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    directory = tiny_pipeline(family, variant)
    bound = open_family(directory)
    denoiser = bound.load_denoiser(directory, torch.float32)
    size = small_size(bound, 64, 64)
    noisy = torch.randn(2, *latent_shape(bound, size), generator=torch.Generator().manual_seed(0))
    conditioning = encode_captions(directory, CAPTIONS[:2]) if bound.text_parts else {}
    if size.num_frames is not None:
        clips = torch.rand(2, 3, size.num_frames, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
        pipeline = load(directory)
        with torch.no_grad():
            conditioning |= bound.encode_first_frames(pipeline.vae, pipeline, clips)
    conditioning |= bound.image_conditioning(torch.tensor([[64.0, 96.0, 0.0, 16.0, 64.0, 64.0]] * 2))
    output = bound.predict(denoiser, noisy, torch.tensor([100, 700]), conditioning, guidance_scale=1.0)
    output.square().mean().backward()
    unreached = {
        name for name, parameter in denoiser.named_parameters() if parameter.grad is None or not parameter.grad.any()
    }
    # In the last block of these the text's queries are computed and dropped, in the published models too; in
    # Qwen-Image's all that only the text's next state needs.
    dropped = {
        "sd3": ("attn.add_q_proj", "attn.norm_added_q"),
        "mochi": ("attn1.add_q_proj", "attn1.norm_added_q"),
        "qwen_image": ("attn.add_q_proj", "attn.norm_added_q", "attn.to_add_out", "txt_mlp"),
    }
    parts = tuple(f"transformer_blocks.3.{part}" for part in dropped.get(family, ()))
    assert [name for name in unreached if not name.startswith(parts)] == []


@pytest.mark.parametrize(("family", "variant"), TEXT_CASES)
def test_tokenizers_reload_to_the_same_ids(family: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    texts = [*CAPTIONS, "Photo of Zoë's 12 blue-grey CATS, in the style of  a woodcut!", ""]
    built = import_module(f"foretune.models.tiny.{family}").build(variant)
    folders = sorted(tiny_pipeline(family, variant).glob("tokenizer*"))
    assert folders
    for folder in folders:
        reloaded = transformers.AutoTokenizer.from_pretrained(folder)
        if isinstance(reloaded, transformers.CLIPTokenizer):
            assert reloaded.model_max_length == 77
        else:
            assert not any(reloaded.unk_token_id in ids for ids in reloaded(texts).input_ids)
        options = {"padding": "max_length", "max_length": 77, "truncation": True}
        assert reloaded(texts, **options).input_ids == getattr(built, folder.name)(texts, **options).input_ids


def test_caption_words_are_single_tokens() -> None:
    clip, t5, qwen = build_clip_tokenizer(), build_t5_tokenizer(model_max_length=512), build_qwen_tokenizer()
    assert [word for word in CAPTION_WORDS if clip.tokenize(word) != [f"{word}</w>"]] == []
    assert [word for word in CAPTION_WORDS if t5.tokenize(word) != [f"▁{word}"]] == []
    assert [word for word in CAPTION_WORDS if qwen.tokenize(f"{word} {word}") != [word, f"Ġ{word}"]] == []
    assert clip("A red circle!").input_ids == clip("a red circle!").input_ids
    assert clip.eos_token_id == len(clip) - 1


def test_bytes_spell_what_is_not_known() -> None:
    text = "naïve 水彩 🎨 xyzzy"
    for tokenizer in (build_clip_tokenizer(), build_qwen_tokenizer()):
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_unknown_names_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="flux") as refused:
        write_tiny_pipeline("fluxx", tmp_path / "absent")
    assert refused.value.known == sorted(TINY_VARIANTS)
    with pytest.raises(UnknownName, match="schnell"):
        write_tiny_pipeline("flux", tmp_path / "absent", variant="snell")
    assert not (tmp_path / "absent").exists()
