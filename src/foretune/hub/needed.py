"""From the name of a repository to the files that training needs of it, before any weights are downloaded."""

from contextlib import AbstractContextManager

from foretune.choices.model import trainable_facts
from foretune.hub.failures import explain_failures
from foretune.hub.repository import RemoteFile, Repository, open_repository


def find_needed_files(repo: str, revision: str | None) -> tuple[Repository, tuple[RemoteFile, ...]]:
    """A model's repository and the files that training needs; raises if it cannot be trained.

    Only the pipeline's index is downloaded: it shows whether the model is supported and which folders are needed.
    """
    with explain_download_failures(repo):
        repository = open_repository(repo, revision)
        facts = trainable_facts(repository.index, repo)
        return repository, repository.needed(facts.denoiser_part)


def explain_download_failures(repo: str) -> AbstractContextManager[None]:
    """Turns a failure of a download within the block into one sentence."""
    return explain_failures(
        repo,
        "could not be downloaded from the Hub",
        "What has arrived is kept: run the command again to continue. Check the model's name; if it is private or "
        "gated, set HF_TOKEN.",
        unreachable="What has arrived is kept: with a network, run the command again to continue. Without one, point "
        "`model` at a local folder in the diffusers layout, or type the folder in place of the model's name.",
    )
