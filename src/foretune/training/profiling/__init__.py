"""A look inside a few steps: torch's profiler as an instrument of the loop, and its trace in the run directory."""
