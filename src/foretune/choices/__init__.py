"""What can be asked: the schema of an experiment, and which choices go together. No torch."""
