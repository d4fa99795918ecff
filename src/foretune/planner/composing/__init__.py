"""Traces composed from other traces.

Three things compose exactly, so each is recorded once instead of with every other setting:

- The update of the weights comes after the backward pass and depends only on the trained weights. So the optimizer of
  a trace can be replaced by another one (`updates`).
- With `levers.fused_backward` the same update runs as soon as a gradient is complete (`updates`).
- A quantised linear layer does what a dense one does, but allocates and frees a dense weight for each product
  (`quantising`).

The marks of a trace, which ship with it, show where gradients arrive and where frozen weights are multiplied. Positions
of a composed trace are spread out, so that there is room between consecutive ones.
"""
