"""Levers, which trade speed for memory, applied to a denoiser. One file per lever."""

from foretune.step.levers.applying import AppliedLevers, apply_levers
from foretune.step.levers.segments import ContextPair

__all__ = ["AppliedLevers", "ContextPair", "apply_levers"]
