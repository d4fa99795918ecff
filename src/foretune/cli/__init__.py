"""The command line: one file a verb; each parses, calls one function and prints. Heavy imports wait until needed."""
