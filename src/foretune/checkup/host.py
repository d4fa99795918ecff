"""What the host must do: read pipelines, write checkpoints, feed the loop, tell of itself."""

import tempfile
from pathlib import Path

import torch

from foretune.catalog import TRAINABLE
from foretune.checkup.finding import Check


def _checkpoint_on_disk(device: torch.device) -> str:  # noqa: ARG001 - the disk is the host's
    from foretune.training.checkpoint_files import Checkpoint
    from foretune.training.checkpoints import CheckpointStore

    with tempfile.TemporaryDirectory(dir=".") as directory:
        store = CheckpointStore(Path(directory), keep=1)
        store.write(Checkpoint(1, {"weights": {"w": torch.arange(10.0)}}, {}))
        found = store.read_newest(["weights"])
    assert found is not None, "nothing was read back"
    return "written, flushed, read back and verified in this folder"


def _pipelines(device: torch.device) -> str:  # noqa: ARG001 - imports only
    import diffusers
    import transformers

    for facts in TRAINABLE.values():
        for name in facts.pipeline_class_names:
            getattr(diffusers, name)
    return f"diffusers {diffusers.__version__}, transformers {transformers.__version__}"


def _loader_process(device: torch.device) -> str:  # noqa: ARG001 - the loader is the host's
    """A loader in a process of its own, with values that come through shared memory."""
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1)
    found = torch.cat([values for (values,) in loader])
    assert torch.equal(found, torch.arange(8.0)), "the values are not those that were sent"
    return "batches come through shared memory"


def _profiler(device: torch.device) -> str:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as seen:
        torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
    names = {event.key for event in seen.key_averages()}
    assert "aten::mm" in names, "the product is not in the profile"
    return f"{len(names)} operators seen"


def _sensors(device: torch.device) -> str:  # noqa: ARG001 - of everything that tells
    from foretune.training.telemetry.sampler import open_sensors

    names_by_source: dict[str, list[str]] = {}
    for sensor in open_sensors():
        names_by_source |= {source: sorted(quantities) for source, quantities in sensor.read().items()}
        sensor.close()
    assert names_by_source, "nothing reports power, clocks, temperature or load"
    has_power = any("power_w" in names or "energy_j" in names for names in names_by_source.values())
    sources = ", ".join(f"{source} ({len(names)})" for source, names in names_by_source.items())
    return f"quantities by source: {sources}; {'with' if has_power else 'no sensor for'} power or energy"


CHECKS = (
    Check("host", "pipelines import", _pipelines, needed=True),
    Check("host", "checkpoint on disk", _checkpoint_on_disk, needed=True),
    Check("host", "loader process", _loader_process),
    Check("host", "profiler", _profiler),
    Check("host", "sensors", _sensors),
)
