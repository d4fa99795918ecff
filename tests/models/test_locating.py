"""From names to folders: a hub that is imitated on this machine, local folders, the catalogue."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.choices.model import resolve_model
from foretune.core.errors import Refused, UserError
from foretune.models.flux import Flux
from foretune.models.locating import family_from_catalogue, locate, open_family
from tests.hub.hub_server import HubServer, commit_of, running_hub

TOKEN = "hf_VerySecretToken123"
CHAT_TEMPLATE = "tokenizer/chat_template.jinja"
"""Beside a language model's tokenizer."""

# Asks for one model after the other; the answers are printed as JSON, one a line.
PROGRAM = """
import json, sys
from foretune.choices.model import resolve_model
from foretune.core.errors import UserError
from foretune.models.locating import locate, open_family
for name in sys.argv[1:]:
    try:
        folder, revision = locate(resolve_model(name))
        answer = {"folder": str(folder), "revision": revision, "family": open_family(folder).name}
    except UserError as error:
        answer = {"error": str(error)}
    print("ANSWER", json.dumps(answer))
"""


def ask_hub(endpoint: str, home: Path, *models: str, **variables: str) -> tuple[list[dict[str, Any]], str]:
    """What a fresh process learns about each model, and everything it printed."""
    hub_variables = ("HF_", "HUGGING", "TRANSFORMERS_OFFLINE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hub_variables)}
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **variables}
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, *models], env={**kept, **own}, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    lines = [line.removeprefix("ANSWER ") for line in finished.stdout.splitlines() if line.startswith("ANSWER ")]
    return [json.loads(line) for line in lines], finished.stdout + finished.stderr


def publish(root: Path, repo: str, pipeline: Path) -> Path:
    """A repository with a pipeline and with what real ones have beside it and nobody needs."""
    folder = root / repo
    shutil.copytree(pipeline, folder)
    denoiser = next(folder.glob("*/diffusion_pytorch_model.safetensors"))
    for extra in ("evil.py", "README.md", "whole-model.safetensors", "text_encoders/t5xxl.safetensors"):
        (folder / extra).parent.mkdir(exist_ok=True)
        (folder / extra).write_bytes(b"not wanted")
    for extra in ("model.bin", "model.fp16.safetensors", "code.py", "model.fp16-00001-of-00002.safetensors"):
        (denoiser.parent / extra).write_bytes(b"not wanted")
    return folder


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def hub_root(tmp_path: Path, tiny_pipeline: Callable[..., Path]) -> Path:
    root = tmp_path / "hub"
    flux = publish(root, "owner/tiny-flux", tiny_pipeline("flux"))
    (flux / CHAT_TEMPLATE).write_text("{{ messages }}")
    # As google/ddpm-cifar10-32 is published: all files beside the index.
    flat = root / "owner" / "flat-ddpm"
    flat.mkdir()
    for part in ("", "unet", "scheduler"):
        for file in (tiny_pipeline("ddpm") / part).iterdir():
            if file.is_file():
                shutil.copy2(file, flat / file.name)
    (flat / "diffusion_pytorch_model.bin").write_bytes(b"pickle")
    other = publish(root, "owner/other-kind", tiny_pipeline("ddpm"))
    (other / "model_index.json").write_text('{"_class_name": "WonderPipeline", "unet": ["diffusers", "UNet2DModel"]}')
    publish(root, "gated/model", tiny_pipeline("ddpm"))
    return root


def check_what_was_fetched(hub: HubServer, answers: list[dict[str, Any]], pipeline: Path) -> None:
    by_branch, by_commit, flat, *_ = answers
    commit = commit_of("owner/tiny-flux")
    assert by_branch == by_commit == {"folder": by_branch["folder"], "revision": commit, "family": "flux"}
    assert Path(by_branch["folder"]).name == commit
    wanted = files_in(pipeline) | {CHAT_TEMPLATE}
    assert hub.files_asked_for("owner/tiny-flux") == wanted
    assert files_in(Path(by_branch["folder"])) == wanted
    for name in files_in(pipeline):
        assert (Path(by_branch["folder"]) / name).read_bytes() == (pipeline / name).read_bytes()
    assert flat["family"] == "ddpm"
    assert flat["revision"] == commit_of("owner/flat-ddpm")
    assert hub.files_asked_for("owner/flat-ddpm") == {
        "model_index.json",
        "config.json",
        "scheduler_config.json",
        "diffusion_pytorch_model.safetensors",
    }


def test_download_from_a_hub(tmp_path: Path, hub_root: Path, tiny_pipeline: Callable[..., Path]) -> None:
    """The real hub cannot be reached in tests: a server on this machine answers as it does.

    It shows that a branch becomes a commit, that nothing but the pipeline's own safe files is fetched, that the token
    comes from the environment and is not printed, that an untrainable model is refused before its weights are fetched,
    and what is said when the hub refuses or is not there.
    """
    flux = f"owner/tiny-flux@{commit_of('owner/tiny-flux')}"
    models = ("owner/tiny-flux@main", flux, "owner/flat-ddpm", "owner/other-kind", "gated/model", "owner/nothing")
    with running_hub(hub_root) as hub:
        answers, printed = ask_hub(hub.endpoint, tmp_path / "home", *models, HF_TOKEN=TOKEN)
        assert len(answers) == len(models)
        check_what_was_fetched(hub, answers, tiny_pipeline("flux"))
        sent = {token for path, token in hub.tokens.items() if "owner/" in path or "gated/" in path}
        assert sent == {f"Bearer {TOKEN}"}
        assert hub.files_asked_for("owner/other-kind") == {"model_index.json"}
    *_, other, gated, nothing = answers
    assert "owner/other-kind is a WonderPipeline, which cannot be trained yet" in other["error"]
    for repo, answer in (("gated/model", gated), ("owner/nothing", nothing)):
        assert f"{repo} could not be downloaded from the Hub" in answer["error"]
        assert "set HF_TOKEN" in answer["error"]
    assert TOKEN not in printed
    # The server is gone: what was fetched is still there, under its commit; anything else says what to do.
    (cached, lost), printed = ask_hub(hub.endpoint, tmp_path / "home", flux, "owner/lost")
    assert cached["folder"] == answers[0]["folder"]
    assert (
        f"owner/lost could not be downloaded from the Hub: {hub.endpoint} cannot be reached from here." in lost["error"]
    )
    assert "point `model` at a local folder" in lost["error"]
    assert "Traceback" not in printed


def test_local_folder_is_used_as_it_is(tiny_pipeline: Callable[..., Path]) -> None:
    folder = tiny_pipeline("sd3")
    assert locate(resolve_model(str(folder))) == (folder, None)
    assert open_family(folder).name == "sd3"


def test_unknown_pipeline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "WonderPipeline"}')
    with pytest.raises(Refused, match="WonderPipeline, which cannot be trained yet"):
        open_family(tmp_path)


@pytest.mark.parametrize(("content", "complaint"), [("{", "cannot be read as JSON"), ("[]", "a JSON object")])
def test_damaged_index_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "model_index.json").write_text(content)
    with pytest.raises(UserError, match=complaint):
        open_family(tmp_path)


def test_flat_layout_opens_and_loads(tmp_path: Path, tiny_pipeline: Callable[..., Path]) -> None:
    for file in tiny_pipeline("ddpm").rglob("*.*"):
        shutil.copy2(file, tmp_path / file.name)
    family = open_family(tmp_path)
    assert family.architecture == open_family(tiny_pipeline("ddpm")).architecture
    flat = family.load_denoiser(tmp_path, torch.float32).state_dict()
    usual = family.load_denoiser(tiny_pipeline("ddpm"), torch.float32).state_dict()
    assert all(torch.equal(flat[name], usual[name]) for name in usual)


def test_catalogue_family_knows_its_autoencoder() -> None:
    family = family_from_catalogue("flux.1-dev")
    assert isinstance(family, Flux)
    assert family.architecture.vae is not None
    assert family.latent_shape(1024, 768) == (16, 128, 96)


@pytest.mark.parametrize("name", ["vae/config.json", "transformer/extra.safetensors", "tokenizer/merges.txt"])
def test_a_pipe_where_a_file_is_read_is_refused_and_not_waited_for(
    name: str, tmp_path: Path, tiny_pipeline: Callable[..., Path]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_pipeline("flux"), folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match=rf"{name} is a named pipe, not a file"):
        open_family(folder)


def test_a_folder_of_links_is_a_model(tmp_path: Path, tiny_pipeline: Callable[..., Path]) -> None:
    """As the Hub's cache has them."""
    original = tiny_pipeline("flux")
    folder = tmp_path / "model"
    for file in original.rglob("*"):
        if file.is_file():
            link = folder / file.relative_to(original)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    assert open_family(folder).architecture == open_family(original).architecture
