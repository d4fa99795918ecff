"""How gradients become new weights: one file a library, and where the update happens."""
