"""The measuring, on a virtual clock: in turns, within the time, robust on a busy machine."""

from collections.abc import Callable, Iterator
from itertools import cycle

import pytest

from foretune.measure.calibration.rounds import MOST_ROUNDS, Rounds, Run, TimedPiece, measure_in_rounds
from tests.virtual_clock import VirtualClock


class Machine:
    """Pieces whose work passes virtual time; the stopwatch reads the same clock."""

    def __init__(self, slowdowns: Iterator[float] | None = None) -> None:
        self.clock = VirtualClock()
        self.order: list[str] = []
        self._slowdowns = slowdowns or cycle([1.0])

    def piece(self, name: str, *seconds: float, group: str = "g", work: float = 1.0) -> TimedPiece:
        return TimedPiece(name, group, work, tuple(self._prepare(name, each) for each in seconds))

    def _prepare(self, name: str, seconds: float) -> Callable[[], Run]:
        def run() -> None:
            self.order.append(name)
            self.clock.advance(seconds * next(self._slowdowns))

        return lambda: run

    def stopwatch(self, run: Run) -> float:
        begin_s = self.clock()
        run()
        return self.clock() - begin_s

    def measure(self, pieces: list[TimedPiece], budget_s: float) -> Rounds:
        return measure_in_rounds(pieces, self.stopwatch, budget_s, self.clock)


def test_pieces_take_turns() -> None:
    machine = Machine()
    found = machine.measure([machine.piece("a", 0.01), machine.piece("b", 0.01)], budget_s=100)
    assert found.num_rounds == MOST_ROUNDS
    assert machine.order == ["a", "a", "b", "b", *["a", "b"] * MOST_ROUNDS], "warm-up, then in turns"
    assert found.timings["a"].seconds == pytest.approx(0.01)
    assert found.timings["a"].spread == pytest.approx(0)


def test_variants_are_averaged() -> None:
    machine = Machine()
    found = machine.measure([machine.piece("layouts", 0.01, 0.02, 0.03)], budget_s=100)
    assert found.timings["layouts"].seconds == pytest.approx(0.02)


def test_a_machine_that_is_busy_two_thirds_of_the_time_is_seen_through() -> None:
    machine = Machine(slowdowns=cycle([2.0, 1.0, 3.0]))
    found = machine.measure([machine.piece("a", 0.01), machine.piece("b", 0.02)], budget_s=100)
    for name, seconds in (("a", 0.01), ("b", 0.02)):
        assert found.timings[name].seconds == pytest.approx(seconds)
        assert found.timings[name].spread == pytest.approx(1.0), "the median is twice the fastest"


def test_the_time_is_kept() -> None:
    machine = Machine()
    machine.measure([machine.piece(str(number), 0.01) for number in range(20)], budget_s=1.5)
    assert machine.clock() <= 1.5


def test_large_pieces_are_left_out_where_four_rounds_would_not_fit() -> None:
    machine = Machine()
    pieces = [machine.piece(f"work {work}", work * 0.01, work=work) for work in (1, 2, 4, 8, 16)]
    found = machine.measure(pieces, budget_s=1.0)
    assert sorted(map(str, found.timings)) == ["work 1", "work 2", "work 4", "work 8"]
    assert found.num_rounds >= 4


def test_every_group_is_measured_in_the_shortest_time() -> None:
    machine = Machine()
    groups = ("products", "attention", "memory")
    pieces = [machine.piece(f"{group} {work}", work, group=group, work=work) for group in groups for work in (1, 2)]
    found = machine.measure(pieces, budget_s=0.001)
    assert sorted(map(str, found.timings)) == ["attention 1", "memory 1", "products 1"]
    assert found.num_rounds == 0
    assert all(timing.spread == 1.0 for timing in found.timings.values()), "one sample says nothing of its own error"


def test_progress_goes_from_nothing_to_all() -> None:
    machine, shares = Machine(), list[float]()
    pieces = [machine.piece(str(number), 0.01) for number in range(30)]
    measure_in_rounds(pieces, machine.stopwatch, 2.0, machine.clock, shares.append)
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-1] == 1.0


def test_what_the_device_cannot_run_is_left_out() -> None:
    machine = Machine()

    def refuse() -> Run:
        raise RuntimeError("no kernel")

    found = machine.measure([TimedPiece("none", "h", 1.0, (refuse,)), machine.piece("a", 0.01)], budget_s=1)
    assert list(found.timings) == ["a"]
