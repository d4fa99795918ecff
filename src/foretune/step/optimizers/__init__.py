"""Optimizers: one file per library, plus where the update runs."""
