"""Doing: train, resume, sample, export."""
