"""Tests of the Python API: each verb as a function, called without the command line."""
