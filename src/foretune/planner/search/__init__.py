"""Searches devices and settings for the cheapest, fastest or smallest way to run a training."""
