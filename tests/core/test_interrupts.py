"""Signals become a request to stop; what listened before listens again afterwards."""

import os
import signal
import threading

import pytest

from foretune.core.interrupts import Interrupted, explained_if_interrupted, stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_is_a_request(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        before_it = (bool(stop), stop.reason)
        os.kill(os.getpid(), number)
        assert before_it == (False, None)
        assert (bool(stop), stop.reason) == (True, number.name)
    assert signal.getsignal(number) == before


def test_the_second_of_a_kind_is_not_held_back() -> None:
    """Whoever presses Ctrl-C twice wants out at once."""
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.reason == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_slurm_sends_it_to_a_process_and_to_the_one_that_passes_it_on(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with stop_on_signals() as stop:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert stop.reason == number.name
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):  # a person
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) == before


def test_handlers_come_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="no"), stop_on_signals():
        raise ValueError("no")
    assert signal.getsignal(signal.SIGTERM) == before


def test_in_another_thread_nothing_is_listened_to() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found: list[object] = []

    def run() -> None:
        with stop_on_signals() as stop:
            found.extend([bool(stop), signal.getsignal(signal.SIGTERM)])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [False, before]


def test_out_at_once_is_told_what_there_is() -> None:
    with (
        pytest.raises(Interrupted, match=r"^Interrupted\. Nothing is lost\.$"),
        explained_if_interrupted("Nothing is lost."),
    ):
        os.kill(os.getpid(), signal.SIGINT)
