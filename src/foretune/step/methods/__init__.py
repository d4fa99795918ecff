"""What is trained. Each method is attached on meta, on small models and on real ones alike."""

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
