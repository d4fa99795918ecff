"""A folder becomes a repository on the Hub."""

import re
from pathlib import Path
from typing import Any

from foretune.core.errors import Refused, UserError
from foretune.hub.failures import explain_failures
from foretune.hub.surroundings import TOKEN_VARIABLES, has_stored_token, token

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CARD = "README.md"


def require_repo_name(repo: str) -> None:
    """Refuses what is no name of a repository."""
    if not _REPO.fullmatch(repo):
        raise UserError(f"{repo!r} is not the name of a repository. Use owner/name, for example: --to me/my-lora")


def require_token() -> None:
    """Refuses to begin what would fail at its end."""
    if token() is None and not has_stored_token():
        raise UserError(
            f"Publishing needs a token with write access, and neither {' nor '.join(TOKEN_VARIABLES)} is set. Make one "
            "on https://huggingface.co/settings/tokens and run: export HF_TOKEN=..."
        )


def check_card(folder: Path) -> None:
    """Has huggingface_hub read the card and its metadata, as the Hub will."""
    from huggingface_hub import ModelCard, ModelCardData

    read: Any = ModelCard((folder / _CARD).read_text(encoding="utf-8")).data
    metadata = read.to_dict()
    again: Any = ModelCardData(**metadata)
    assert again.to_dict() == metadata, "the metadata of the card are those of a model"


def files_of(folder: Path) -> tuple[tuple[str, int], ...]:
    """The files of a folder with their sizes: what is uploaded, and nothing else."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple((path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths)


def upload(folder: Path, repo: str, *, is_private: bool) -> str:
    """Makes the repository if it is not there, and commits the files of the folder to it; returns its address.

    A repository that is public already is refused where a private one is asked for, before anything is sent.
    """
    from huggingface_hub import HfApi

    advice = "Check the network and the name of the owner, then run the command again."
    with explain_failures(repo, "could not be uploaded to the Hub", advice, _NO_WRITE_ACCESS):
        hub = HfApi(token=token())
        address = str(hub.create_repo(repo, private=is_private, exist_ok=True))
        if is_private and hub.model_info(repo).private is False:
            raise Refused(
                f"{repo} exists and is public. Run: foretune publish RUN --to {repo} --public, or choose another name."
            )
        names = [name for name, _ in files_of(folder)]
        hub.upload_folder(
            repo_id=repo, folder_path=folder, allow_patterns=names, commit_message="Upload a run of Foretune"
        )
    return address


_NO_WRITE_ACCESS = "Set HF_TOKEN to a token of its owner that may write: https://huggingface.co/settings/tokens"
