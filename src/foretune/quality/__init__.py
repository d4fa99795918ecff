"""How good images are: one file a metric or a group of them, listed by name in `metrics.py`."""
