"""Speech: values in, pages out. Nothing is computed here that a value does not hold."""
