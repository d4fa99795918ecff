"""Sweeps: one experiment in many configurations, each trial in a fresh process, run by an executor."""
