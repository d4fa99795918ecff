"""Image quality metrics: one file per metric or group, listed by name in `metrics.py`."""
