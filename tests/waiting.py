"""How long a test waits for a process that it started."""

HANG_S = 900.0
"""No measure of anything, and far above what a busy machine takes: whoever has not ended by then hangs."""
