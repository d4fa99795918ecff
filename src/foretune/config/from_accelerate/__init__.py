"""Configurations of Hugging Face accelerate, and of DeepSpeed inside of them, as settings of an experiment."""
