"""Copies of model folders hold what lies in them, and nothing from elsewhere."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.core.errors import UserError
from foretune.models.copying import copy_model

SECRET = "-----BEGIN PRIVATE KEY-----"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "vae").mkdir(parents=True)
    (folder / "model_index.json").write_text("{}")
    (folder / "vae" / "config.json").write_text('{"a": 1}')
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "id_rsa").write_text(SECRET)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_copied_as_it_is(model: Path, tmp_path: Path) -> None:
    copy_model(model, tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(model) == {"model_index.json": "{}", "vae/config.json": '{"a": 1}'}


def test_what_is_left_out_is_not_even_examined(model: Path, tmp_path: Path) -> None:
    (model / "unet").symlink_to(tmp_path / "elsewhere")
    (model / ".cache").symlink_to(tmp_path / "elsewhere")
    copy_model(model, tmp_path / "copy", lambda path: path.name in ("unet", ".cache", "model_index.json"))
    assert contents(tmp_path / "copy") == {"vae/config.json": '{"a": 1}'}


def _to_a_file(model: Path, name: str) -> None:
    (model / "vae" / name).symlink_to(model.parent / "elsewhere" / "id_rsa")


def _to_a_file_by_a_relative_path(model: Path, name: str) -> None:
    (model / "vae" / name).symlink_to("../../elsewhere/id_rsa")


def _to_a_folder(model: Path, name: str) -> None:
    (model / name).symlink_to(model.parent / "elsewhere")


def _to_a_link(model: Path, name: str) -> None:
    (model / "vae" / ".hop").symlink_to(model.parent / "elsewhere" / "id_rsa")
    (model / "vae" / name).symlink_to(".hop")


LINKS = [_to_a_file, _to_a_file_by_a_relative_path, _to_a_folder, _to_a_link]


@pytest.mark.parametrize("make", LINKS)
def test_a_link_out_is_refused_by_name_and_nothing_is_written(
    model: Path, tmp_path: Path, make: Callable[[Path, str], None]
) -> None:
    make(model, "notes")
    with pytest.raises(
        UserError, match=r"notes leads to .*elsewhere.*outside of .*model.*export RUN --follow-links|\.hop"
    ):
        copy_model(model, tmp_path / "copy")
    assert contents(tmp_path / "copy") == {}


@pytest.mark.parametrize("make", LINKS)
def test_a_link_out_is_followed_where_that_is_asked_for(
    model: Path, tmp_path: Path, make: Callable[[Path, str], None]
) -> None:
    make(model, "notes")
    copy_model(model, tmp_path / "copy", follow_links=True)
    assert SECRET in contents(tmp_path / "copy").values()
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))


def test_links_inside_are_copied_as_the_files_they_lead_to(model: Path, tmp_path: Path) -> None:
    (model / "vae" / "same.json").symlink_to("config.json")
    (model / "vae2").symlink_to("vae")
    copy_model(model, tmp_path / "copy")
    found = contents(tmp_path / "copy")
    assert found["vae/same.json"] == found["vae2/config.json"] == '{"a": 1}'
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))


def test_a_snapshot_of_the_hub_s_cache_has_its_files_among_the_blobs(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--owner--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    (snapshot / "vae").mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "e3b0").write_text('{"a": 1}')
    (snapshot / "vae" / "config.json").symlink_to("../../../blobs/e3b0")
    copy_model(snapshot, tmp_path / "copy")
    assert contents(tmp_path / "copy") == {"vae/config.json": '{"a": 1}'}
    (tmp_path / "hub" / "token").write_text(SECRET)
    (snapshot / "vae" / "notes.json").symlink_to("../../../../token")
    with pytest.raises(UserError, match=r"notes\.json leads to .*token, outside of .*models--owner--name"):
        copy_model(snapshot, tmp_path / "second")


@pytest.mark.parametrize("follow_links", [False, True])
def test_links_in_a_circle_pipes_and_sockets_are_refused_by_name(
    model: Path, tmp_path: Path, follow_links: bool
) -> None:
    (model / "around").symlink_to(".")
    with pytest.raises(UserError, match="around is a link to itself"):
        copy_model(model, tmp_path / "copy", follow_links=follow_links)
    (model / "around").unlink()
    os.mkfifo(model / "vae" / "pipe.json")
    with pytest.raises(UserError, match=r"pipe\.json is a named pipe, not a file"):
        copy_model(model, tmp_path / "copy", follow_links=follow_links)
    (model / "vae" / "pipe.json").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(model / "s.json"))
        with pytest.raises(UserError, match=r"s\.json is a socket, not a file"):
            copy_model(model, tmp_path / "copy", follow_links=follow_links)
