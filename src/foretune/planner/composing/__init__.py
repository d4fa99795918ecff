"""Traces that are put together from others.

Three things compose exactly, and each is recorded once instead of with every other choice:

- The update of the weights comes after the backward pass and depends on the trained weights alone. So the optimizer of
  a trace can be taken out and another one put in (`updates`).
- With `levers.fused_backward` the same update runs as soon as a gradient is there (`fused`).
- A quantised linear layer does what a dense one does, and for each product makes a dense weight and gives it back
  (`quantising`).

Where in a step gradients arrive and frozen weights are multiplied with is in the marks of a trace, which ship beside
it. Positions of a composed trace are spread, so that there is room between two that follow each other.
"""
