"""Trains a tiny model, for tests of what the start of a process changes."""

import hashlib
from pathlib import Path
from typing import Any

from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.training.several import train_in_ranks
from tests.proofs.ends import hashes_of


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """What the last checkpoint consists of, as hashes, and a draw of generators that nobody has seeded."""
    import numpy as np

    trained = train_in_ranks(understand(request["asked"], source=None), Path(request["runs"]), observer)
    (newest,) = trained.run.checkpoints.glob("step-*")
    draw = hashlib.sha256(np.random.random(4).tobytes()).hexdigest()  # noqa: NPY002 - the generator that is shared
    return {"hashes": hashes_of(newest), "draw": draw}
