"""Tasks in processes of their own, on this machine or on a cluster. Knows nothing of what a task does."""
