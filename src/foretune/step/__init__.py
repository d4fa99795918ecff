"""The training step, and the modules that apply each setting to it."""
