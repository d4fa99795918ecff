"""Sweep files that come with Foretune: `foretune sweep workers` runs `workers.yaml` of this folder."""

from pathlib import Path

SWEEP_PRESETS = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
"""Their files by name."""
