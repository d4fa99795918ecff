"""Tiny models with a cache they share, and a process to fork others from: each made once a session."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.proofs.fork_server import ForkServer
from tests.proofs.partial_counts import PartialCounts


@dataclass(frozen=True)
class TinyModels:
    """Where the tiny pipelines are, and the cache of what they encoded."""

    path: Callable[[str], Path]
    """From a family to its folder."""
    cache: Path


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from more threads, which wait for one another when the machine is busy."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def tiny_models(tiny_pipeline: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tiny_pipeline, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def partial_counts(request: pytest.FixtureRequest, tmp_path: Path) -> PartialCounts:
    """Kept in pytest's own cache under the name of the test; where that is switched off, for this run only."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    folder = cache.mkdir("foretune-proofs") if cache is not None else tmp_path
    return PartialCounts(folder, request.node.name.replace("/", "-"))


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Its processes write what they say into one log; a proof that fails says where it is."""
    if not hasattr(os, "fork"):
        pytest.skip("this platform cannot fork")
    with ForkServer(tmp_path_factory.mktemp("fork-server") / "log.txt") as server:
        yield server
