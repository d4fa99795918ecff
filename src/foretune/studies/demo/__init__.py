"""The demonstration: a study file of its own, run like any other."""
