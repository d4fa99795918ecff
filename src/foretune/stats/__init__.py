"""Medians, intervals and warnings as values, for everything that was measured. No torch."""
