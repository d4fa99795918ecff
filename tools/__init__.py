"""What maintainers run: traces, the record of the backtest and the small model are made here. Not in the package."""
