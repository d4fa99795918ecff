"""Adapters by folder, file or repository of the Hub. Every command that reads an adapter finds it here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.choices.adapter import ADAPTER_FILE, PEFT_FILE, PEFT_SETTINGS, AdapterReference, resolve_adapter
from foretune.choices.model import PIPELINE_INDEX
from foretune.core.errors import Refused, UserError
from foretune.core.input_files import shown
from foretune.hub.failures import explain_failures
from foretune.hub.repository import RemoteFile, open_adapter_repository
from foretune.hub.transfer import download

_SAFE_SUFFIX = ".safetensors"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MOST_NAMED = 10
_SHORT_COMMIT = 10


@dataclass(frozen=True)
class LocatedAdapter:
    """An adapter on this machine."""

    asked: str
    path: Path
    """A folder, or a file of safetensors."""
    revision: str | None = None
    """The commit that was downloaded; None for what is no repository of the Hub."""

    @property
    def label(self) -> str:
        """The name with the commit that was read, because a branch moves: in pictures, tables and records."""
        return self.asked if self.revision is None else f"{self.asked} ({self.revision[:_SHORT_COMMIT]})"


def locate_adapter(asked: str | Path) -> LocatedAdapter:
    """Finds an adapter, and downloads it if it is on the Hub: safetensors and the settings of peft, nothing else.

    Raises:
        UserError: it is neither here nor on the Hub, or the Hub cannot be reached.
        Refused: the repository holds no safetensors file.
    """
    reference = resolve_adapter(asked)
    if reference.path is not None:
        return LocatedAdapter(reference.asked, reference.path)
    assert reference.repo is not None, "it is on the Hub if it is not here"
    advice = (
        "Check the adapter's name; if it is private or gated, set HF_TOKEN; without a network, name a folder on this "
        "machine."
    )
    with explain_failures(reference.repo, "could not be downloaded from the Hub", advice):
        repository = open_adapter_repository(reference.repo, reference.revision)
        wanted, weights = _chosen(reference, repository.files)
        download(repository, wanted)
    path = repository.folder / weights
    is_a_folder = path.name in (ADAPTER_FILE, PEFT_FILE)
    return LocatedAdapter(reference.asked, path.parent if is_a_folder else path, repository.commit)


def _chosen(reference: AdapterReference, files: Sequence[RemoteFile]) -> tuple[list[RemoteFile], str]:
    """The files to download, and the path of the weights among them."""
    weights = _weights(reference, [file.path for file in files])
    folder, slash, name = weights.rpartition("/")
    settings = f"{folder}{slash}{PEFT_SETTINGS}" if name == PEFT_FILE else None
    return [file for file in files if file.path in (weights, settings)], weights


def _weights(reference: AdapterReference, paths: Sequence[str]) -> str:
    repo, safe = reference.repo, sorted(path for path in paths if path.endswith(_SAFE_SUFFIX))
    if PIPELINE_INDEX in paths:
        raise Refused(f"{repo} is a whole model, not an adapter: it has a {PIPELINE_INDEX}.")
    if not safe:
        pickles = [shown(path) for path in sorted(paths) if path.endswith(_PICKLE_SUFFIXES)]
        why = f" Its {pickles[0]} is a pickle, which can run code and is not read." if pickles else ""
        raise Refused(f"{repo} holds no {_SAFE_SUFFIX} file, so there is no adapter to read.{why}")
    candidates = ", ".join(map(shown, safe[:_MOST_NAMED])) + (", ..." if len(safe) > _MOST_NAMED else "")
    if reference.file is not None:
        if reference.file not in safe:
            raise UserError(f"{repo} holds no adapter {shown(reference.file)}. It holds: {candidates}.")
        return reference.file
    for name in (ADAPTER_FILE, PEFT_FILE):
        if name in safe:
            return name
    if len(safe) > 1:
        raise UserError(
            f"{repo} holds {len(safe)} {_SAFE_SUFFIX} files: {candidates}. Name one of them: "
            f"{reference.asked}:{shown(safe[0])}"
        )
    return safe[0]
