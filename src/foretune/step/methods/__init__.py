"""What is trained. One file a method; each is attached on meta, on small models and on real ones alike."""

from foretune.core.registry import Registry
from foretune.step.methods.base import AppliedMethod

METHODS: Registry[type[AppliedMethod]] = Registry(
    "method",
    {
        "full": "foretune.step.methods.full:AppliedFull",
        "lora": "foretune.step.methods.lora:AppliedLora",
    },
)

__all__ = ["METHODS", "AppliedMethod"]
