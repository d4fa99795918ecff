"""What the command line prints: sentences and tables of plans, runs, comparisons and studies."""
