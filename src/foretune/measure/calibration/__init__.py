"""Measures how fast a device is at the kernels that training steps are made of."""
