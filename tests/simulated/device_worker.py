"""A task that reports the device it computes on, and what its process had imported before."""

import sys
from typing import Any

from foretune.core.observer import Observer

IS_PRELOADED = "diffusers" in sys.modules


def perform(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    import torch

    from foretune.training.devices import choose_device
    from foretune.training.places import place_on

    device = choose_device("auto")
    return {
        "is_preloaded": IS_PRELOADED,
        "uuid": place_on(device).uuid,
        "num_visible": torch.cuda.device_count(),
        "sum": float(torch.arange(4.0, device=device).sum()),
    }
