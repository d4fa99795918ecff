"""What runs now, from the files alone."""
