"""Judgement on runs: what was measured is read, compared and put into values. Never draws, never runs anything."""
