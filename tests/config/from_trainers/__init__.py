"""Configurations of other trainers as experiments."""
