"""A clock that only a test moves: what is measured by it does not depend on what else the machine does."""


class VirtualClock:
    """Call it for the time, as one calls `time.monotonic`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Lets time pass, as work or a wait of this length would."""
        assert seconds >= 0, "time does not go back"
        self.now_s += seconds
