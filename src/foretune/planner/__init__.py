"""Predicts without torch whether a run fits, from the traces that ship with the package."""
