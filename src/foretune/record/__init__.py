"""What is kept of a run: its directory, its events, the environment it ran in. No torch."""
