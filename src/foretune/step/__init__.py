"""The one training step, and what applies each choice to it."""
