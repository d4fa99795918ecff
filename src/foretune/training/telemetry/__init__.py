"""Sensors of devices and host, read beside a run. What a machine does not tell is absent, never zero."""
