"""Prediction without torch: what fits, read off the traces that ship with the package."""
