"""What of a machine is found before it is published."""

import json
import platform
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foretune.core.errors import UserError
from foretune.hub.personal import Personal, clean_origins, refuse_personal

SECRET = "hf_" + "a1B2" * 8


@pytest.fixture
def personal(tmp_path: Path) -> Personal:
    return Personal([tmp_path / "models" / "mine"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "publish"
    made.mkdir()
    (made / "README.md").write_text("A small red circle on blue: 12.3 samples/s, see https://huggingface.co/a/b\n")
    return made


def test_a_card_without_anything_personal_passes(folder: Path, personal: Personal) -> None:
    (folder / "config.json").write_text('{"_name_or_path": "owner/model", "hidden": 4}')
    refuse_personal(folder, personal)


@pytest.mark.parametrize("text", ["{base}/x", "{home}/data", "made on {host}.", f"token {SECRET}", "{cwd}/runs"])
@pytest.mark.parametrize("name", ["README.md", "scheduler/scheduler_config.json", "notes.txt"])
def test_folders_names_and_tokens_are_found(
    text: str, name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "someone"))
    monkeypatch.setattr(platform, "node", lambda: "workstation-7")
    places = {"base": tmp_path / "models" / "mine", "home": tmp_path / "home" / "someone", "cwd": Path.cwd()}
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text.format(**places, host="workstation-7"))
    with pytest.raises(UserError, match=rf"{name} would publish .*so nothing was uploaded"):
        refuse_personal(folder, Personal([tmp_path / "models" / "mine"]))


def test_part_of_a_word_is_not_the_name_of_the_machine(
    folder: Path, personal: Personal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "blue7")
    (folder / "README.md").write_text("blue7ish, dark-blue7, blue7-green\n")
    refuse_personal(folder, Personal([]))
    (folder / "README.md").write_text("on blue7\n")
    with pytest.raises(UserError, match="the name of this machine"):
        refuse_personal(folder, Personal([]))
    # A name that is a word would be found in every card.
    monkeypatch.setattr(platform, "node", lambda: "train")
    (folder / "README.md").write_text("how to train\n")
    refuse_personal(folder, Personal([]))


def test_folders_as_json_writes_them_are_found(folder: Path) -> None:
    where = Path("/home/ren\u00e9/models")
    (folder / "config.json").write_text(json.dumps({"loaded": f"{where}/x"}))
    assert "ren\\u00e9" in (folder / "config.json").read_text()
    with pytest.raises(UserError, match="a folder of this machine"):
        refuse_personal(folder, Personal([where]))


def test_parts_of_other_paths_and_addresses_are_not_folders_of_the_machine(folder: Path) -> None:
    (folder / "README.md").write_text("https://huggingface.co/datasets/a ./data/photos /data-set\n")
    refuse_personal(folder, Personal([Path("/data")]))
    (folder / "README.md").write_text("from /data/photos\n")
    with pytest.raises(UserError, match="a folder of this machine"):
        refuse_personal(folder, Personal([Path("/data")]))


def test_metadata_of_tensors_are_looked_at(folder: Path, personal: Personal, tmp_path: Path) -> None:
    origin = str(tmp_path / "models" / "mine")
    save_file({"w": torch.zeros(2)}, folder / "weights.safetensors", metadata={"base": origin})
    with pytest.raises(UserError, match=r"weights\.safetensors would publish a folder of this machine"):
        refuse_personal(folder, personal)


def test_origins_that_libraries_noted_are_replaced(folder: Path, personal: Personal, tmp_path: Path) -> None:
    path = folder / "transformer" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"_name_or_path": str(tmp_path / "models" / "mine" / "transformer"), "depth": 2}))
    public = folder / "vae_config.json"
    public.write_text('{"_name_or_path": "../checkpoints/flux-dev", "depth": 3}')
    clean_origins(folder, personal, "owner/base")
    assert json.loads(path.read_text()) == {"_name_or_path": "owner/base", "depth": 2}
    assert json.loads(public.read_text())["_name_or_path"] == "../checkpoints/flux-dev"
    refuse_personal(folder, personal)
