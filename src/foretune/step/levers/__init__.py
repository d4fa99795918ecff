"""Levers, which trade speed for memory, applied to a denoiser. One file per lever."""

from foretune.step.levers.applying import AppliedLevers, apply_levers, modules_on_host
from foretune.step.levers.segments import ContextPair

__all__ = ["AppliedLevers", "ContextPair", "apply_levers", "modules_on_host"]
