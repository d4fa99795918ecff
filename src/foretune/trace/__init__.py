"""Records the training step on fake tensors: its allocations and operators, without weights or a GPU."""
