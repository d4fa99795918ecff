"""The CLIP score against a direct computation with a small CLIP from a folder; extractors from folders."""

from pathlib import Path

import numpy as np
import pytest
import torch

from foretune.core.errors import Refused, UserError
from foretune.quality.clip_model import open_clip
from foretune.quality.clip_score import ClipScore
from foretune.quality.extractors import open_extractor
from tests.quality.made import in_groups, made_setting, smooth_images

CPU = torch.device("cpu")
SIZE_PX = 32


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of two small layers with random weights, as save_pretrained writes it."""
    from transformers import CLIPConfig, CLIPModel

    from foretune.models.tiny.tokenizers import build_clip_tokenizer

    folder = tmp_path_factory.mktemp("clip")
    tokenizer = build_clip_tokenizer()
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={
            **layers,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 77,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config={**layers, "image_size": SIZE_PX, "patch_size": 8},
        projection_dim=16,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        CLIPModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_score_is_that_of_a_direct_computation(clip_folder: Path) -> None:
    from transformers import AutoTokenizer, CLIPModel

    images, prompt = smooth_images(3, size_px=SIZE_PX), "a small red circle on blue"
    found = open_clip(str(clip_folder), CPU).scores(images, prompt)
    model = CLIPModel.from_pretrained(clip_folder).eval()
    tokens = AutoTokenizer.from_pretrained(clip_folder)([prompt], return_tensors="pt")
    mean = np.array([0.48145466, 0.4578275, 0.40821073])
    std = np.array([0.26862954, 0.26130258, 0.27577711])
    pixels = torch.from_numpy(((np.stack(images) - mean) / std).transpose(0, 3, 1, 2)).float()
    with torch.no_grad():
        answer = model(pixel_values=pixels, **tokens)
    a = answer.image_embeds / answer.image_embeds.norm(dim=1, keepdim=True)
    b = answer.text_embeds / answer.text_embeds.norm(dim=1, keepdim=True)
    assert found == pytest.approx((100 * a @ b.T).clamp(min=0).flatten().tolist(), abs=1e-3)
    assert len(set(found)) == 3


def test_it_is_taken_prompt_by_prompt(clip_folder: Path) -> None:
    prompts = ("a small red circle on blue", "a large white cross on black")
    setting = made_setting(prompts=prompts, num_seeds=2, clip=str(clip_folder))
    assert ClipScore().why_absent(setting) is None
    images = smooth_images(4, size_px=SIZE_PX)
    (found,) = ClipScore().measure(setting, in_groups(images, 2), None)
    clip = open_clip(str(clip_folder), CPU)
    assert found.groups == (tuple(clip.scores(images[:2], prompts[0])), tuple(clip.scores(images[2:], prompts[1])))


def test_without_weights_it_says_where_they_are_from() -> None:
    why = ClipScore().why_absent(made_setting())
    assert why is not None
    assert "--clip FOLDER" in why
    assert "openai/clip-vit-base-patch32" in why


def test_a_folder_without_weights_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--clip .*could not be loaded .*in no package: give a folder"):
        open_clip(str(tmp_path), CPU)


def test_clip_is_an_extractor_too(clip_folder: Path) -> None:
    from foretune.models.flux import Flux

    extractor = open_extractor(f"clip:{clip_folder}", Flux, Path(), CPU)  # type: ignore[arg-type]
    features = extractor.features(smooth_images(5, size_px=48))
    assert features.shape == (5, extractor.num_features) == (5, 16)


def test_a_model_of_images_is_an_extractor(tmp_path: Path) -> None:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
    Dinov2Model(config).save_pretrained(tmp_path)
    extractor = open_extractor(f"dino:{tmp_path}", None, Path(), CPU)  # type: ignore[arg-type]
    assert extractor.features(smooth_images(3)).shape == (3, extractor.num_features) == (3, 24)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("inception:./weights", r"comes? as a pickle.*dino:facebook/dinov2-base"),
        ("clip", r"no such extractor\. Known: vae, pixels, clip:"),
        ("resnet", r"no such extractor"),
    ],
)
def test_other_extractors_are_refused(asked: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        open_extractor(asked, None, Path(), CPU)  # type: ignore[arg-type]
