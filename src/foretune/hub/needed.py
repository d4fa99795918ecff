"""From the name of a repository to the files that training needs of it, before any weights are downloaded."""

from contextlib import AbstractContextManager

from foretune.choices.model import trainable_facts
from foretune.hub.failures import told_failures
from foretune.hub.repository import RemoteFile, Repository, open_repository


def needed_of(repo: str, revision: str | None) -> tuple[Repository, tuple[RemoteFile, ...]]:
    """A model's repository and the files that training needs; raises if it cannot be trained.

    Only the pipeline's index is downloaded: it shows whether the model is supported and which folders are needed.
    """
    with told_download(repo):
        repository = open_repository(repo, revision)
        facts = trainable_facts(repository.index, repo)
        return repository, repository.needed(facts.denoiser_part)


def told_download(repo: str) -> AbstractContextManager[None]:
    """Turns a failure of a download within the block into one sentence."""
    return told_failures(
        repo,
        "could not be downloaded from the Hub",
        "What has arrived is kept: run the command again to continue. Check the model's name; if it is private or "
        "gated, set HF_TOKEN; without a network, point `model` at a local folder in the diffusers layout.",
    )
