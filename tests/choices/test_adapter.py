"""The name of an adapter: a folder, a file, or a repository of the Hub."""

from pathlib import Path

import pytest

from foretune.choices.adapter import AdapterReference, resolve_adapter
from foretune.core.errors import Refused, UserError


@pytest.mark.parametrize(
    ("asked", "repo", "revision", "file"),
    [
        ("me/my-lora", "me/my-lora", None, None),
        ("me/my-lora@refs/pr/1", "me/my-lora", "refs/pr/1", None),
        ("me/my.lora:deep/a b.safetensors", "me/my.lora", None, "deep/a b.safetensors"),
        ("me/my-lora@v2:a.safetensors", "me/my-lora", "v2", "a.safetensors"),
    ],
)
def test_a_name_that_is_nothing_here_is_on_the_hub(
    asked: str, repo: str, revision: str | None, file: str | None
) -> None:
    assert resolve_adapter(asked) == AdapterReference(asked, repo=repo, revision=revision, file=file)


def test_what_is_here_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("me/my-lora").mkdir(parents=True)
    Path("me/a.safetensors").touch()
    for here in ("me/my-lora", "me/a.safetensors"):
        assert resolve_adapter(here) == AdapterReference(here, path=Path(here))
    # A run's folder by a wrong name, not a repository of somebody called "me".
    with pytest.raises(UserError, match="There is no adapter me/my-loar"):
        resolve_adapter("me/my-loar")
    for elsewhere in ("/no/such/folder", "adapter", "./me2/lora", "me2/lora/deep", "../up"):
        with pytest.raises(UserError, match=r"There is no adapter .* repository of the Hub: OWNER/REPO"):
            resolve_adapter(elsewhere)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    with pytest.raises(Refused, match="is not a safetensors file"):
        resolve_adapter(tmp_path / "a.bin")
