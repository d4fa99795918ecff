"""Tests of the architecture itself. Each rule is a function on a tree, so that a control can break it."""
