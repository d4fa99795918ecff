"""Configurations of other trainers: which program reads a file, and the experiment that trains the same."""
