"""Training methods. Each attaches in the same way to meta, small and real models."""

from foretune.core.registry import Registry
from foretune.step.methods.base import AppliedMethod

_ADAPTER = "foretune.step.methods.adapter:AppliedAdapter"

METHODS: Registry[type[AppliedMethod]] = Registry(
    "method",
    {
        "full": "foretune.step.methods.full:AppliedFull",
        "lora": _ADAPTER,
        "dora": _ADAPTER,
        "rslora": _ADAPTER,
        "loha": _ADAPTER,
        "lokr": _ADAPTER,
        "oft": _ADAPTER,
    },
)

__all__ = ["METHODS", "AppliedMethod"]
