"""Plans inference: memory and time of a model's pipeline for a batch on a device, from traces alone."""
