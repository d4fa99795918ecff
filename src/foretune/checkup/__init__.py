"""Does this machine do what a training needs? Each operation is executed, on each device present."""
