"""An index of stored runs, so that a hundred thousand of them can be filtered in seconds. The files stay the truth."""
