"""The training run: preparing, the loop, checkpoints, validation, sampling, export, sensors and trackers."""
