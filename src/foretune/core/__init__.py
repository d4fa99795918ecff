"""The values that travel between stages, units, errors and the registry. No torch, no logic of any stage."""
