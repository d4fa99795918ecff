"""What speaks against an experiment: one file for each kind of choice, each with one function."""

from foretune.choices.objections.base import DeviceType, Objection

__all__ = ["DeviceType", "Objection"]
