"""The training step on fake tensors: what it allocates and computes, known without weights and without a GPU."""
