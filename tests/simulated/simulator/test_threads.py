"""Host threads: a thread knows that work is done if it waited, or if the program orders it after a thread that did."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import simaccel
from tests.simulated.simulator.programs import findings_of

pytestmark = [pytest.mark.simulated, pytest.mark.usefixtures("simulated_gpu")]

NUM_ITEMS = 1000


def written_on_a_side_stream() -> tuple[Any, Any]:
    """A tensor that a side stream writes to, and the stream."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        tensor = torch.ones(NUM_ITEMS, device="cuda")
    return tensor, side


def run_in_thread(function: Callable[[], object]) -> list[BaseException]:
    """Runs a function in a thread to its end and returns what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors


def test_a_started_thread_knows_what_its_creator_waited_for() -> None:
    def program(waits: bool) -> None:
        tensor, side = written_on_a_side_stream()
        if waits:
            side.synchronize()
        for error in run_in_thread(lambda: tensor + 1):
            raise error

    assert findings_of(lambda: program(True)) == []
    assert len(findings_of(lambda: program(False))) == 1


def test_a_joined_thread_hands_on_what_it_waited_for() -> None:
    def program(joins: bool) -> None:
        tensor, side = written_on_a_side_stream()
        over = threading.Thread(target=side.synchronize)
        over.start()
        if joins:
            over.join()
        # Without it the thread may be over in time, but the program does not order what follows after it.
        try:
            tensor + 1
        finally:
            over.join()

    assert findings_of(lambda: program(True)) == []
    assert len(findings_of(lambda: program(False))) == 1


def handed_over_by_queue(make: Callable[[], Any], is_correct: bool) -> None:
    """A thread hands over a tensor that it waited for, or did not wait for."""
    channel = make()
    tensor, side = written_on_a_side_stream()

    def produce() -> None:
        if is_correct:
            side.synchronize()
        channel.put(1)

    thread = threading.Thread(target=produce)
    thread.start()
    channel.get()
    try:
        tensor + 1
    finally:
        thread.join()


@pytest.mark.parametrize("make", [queue.Queue, queue.SimpleQueue, queue.LifoQueue, queue.PriorityQueue])
def test_queues_hand_on_knowledge(make: Callable[[], Any]) -> None:
    assert findings_of(lambda: handed_over_by_queue(make, True)) == []
    assert len(findings_of(lambda: handed_over_by_queue(make, False))) == 1


def by_event(is_correct: bool) -> None:
    tensor, side = written_on_a_side_stream()
    ready = threading.Event()

    def wait_and_tell() -> None:
        if not is_correct:
            ready.set()
        else:
            side.synchronize()
            ready.set()

    thread = threading.Thread(target=wait_and_tell)
    thread.start()
    ready.wait()
    tensor + 1
    thread.join()


def by_lock(is_correct: bool) -> None:
    tensor, side = written_on_a_side_stream()
    lock, other = threading.Lock(), threading.Lock()
    lock.acquire()

    def wait_and_release() -> None:
        if is_correct:
            side.synchronize()
        lock.release()

    thread = threading.Thread(target=wait_and_release)
    thread.start()
    with lock, other:
        tensor + 1
    thread.join()


def by_condition(is_correct: bool) -> None:
    tensor, side = written_on_a_side_stream()
    condition, done = threading.Condition(), []

    def wait_and_notify() -> None:
        if is_correct:
            side.synchronize()
        with condition:
            done.append(True)
            condition.notify()

    thread = threading.Thread(target=wait_and_notify)
    thread.start()
    with condition:
        condition.wait_for(lambda: done)
    tensor + 1
    thread.join()


def by_future(is_correct: bool) -> None:
    tensor, side = written_on_a_side_stream()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(side.synchronize if is_correct else int).result()
    tensor + 1


@pytest.mark.parametrize("program", [by_event, by_lock, by_condition, by_future], ids=lambda program: program.__name__)
def test_primitives_hand_on_knowledge(program: Callable[[bool], None]) -> None:
    assert findings_of(lambda: program(True)) == []
    assert len(findings_of(lambda: program(False))) == 1


def used_in_a_thread_that_did_not_wait(use: Callable[[Any], object], make: Callable[[], tuple[Any, Any]]) -> list[str]:
    """The main thread hands over a tensor and waits for it afterwards; the thread that uses it then never waits."""
    errors: list[BaseException] = []

    def program() -> None:
        tensor, stream = make()
        channel: queue.SimpleQueue[Any] = queue.SimpleQueue()
        not_waited = threading.Lock()
        not_waited.acquire()

        def receive() -> None:
            received = channel.get()
            # Time passes until the main thread has waited; nothing orders the two.
            while not_waited.locked():
                pass
            try:
                use(received)
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=receive)
        thread.start()
        channel.put(tensor)
        stream.synchronize()
        not_waited.release()
        thread.join()

    findings = findings_of(program)
    assert len(errors) == len(findings)
    return findings


def test_a_thread_does_not_know_what_another_one_waited_for_later() -> None:
    (finding,) = used_in_a_thread_that_did_not_wait(lambda tensor: tensor + 1, written_on_a_side_stream)
    assert "race on device memory" in finding


def test_a_page_locked_buffer_is_sent_on_by_a_thread_that_did_not_wait() -> None:
    import torch

    def filled() -> tuple[Any, Any]:
        buffer, side = torch.empty(NUM_ITEMS, pin_memory=True), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            buffer.copy_(torch.ones(NUM_ITEMS, device="cuda"), non_blocking=True)
        return buffer, side

    (finding,) = used_in_a_thread_that_did_not_wait(lambda buffer: buffer.to("cuda", non_blocking=True), filled)
    assert "race on page-locked memory" in finding


def polled(after: Callable[[], None], between: Callable[[], None]) -> list[str]:
    """A thread waits and sets a plain attribute; the main thread reads it in a loop."""

    def program() -> None:
        tensor, side = written_on_a_side_stream()
        done: list[bool] = []

        def wait() -> None:
            side.synchronize()
            done.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        between()
        while not done:
            between()
        after()
        try:
            tensor + 1
        finally:
            thread.join()

    return findings_of(program)


def test_what_ends_a_loop_of_sleeps_cannot_be_seen_so_it_is_not_reported() -> None:
    assert polled(after=lambda: None, between=lambda: time.sleep(0.001)) == []


def test_threads_that_the_program_declares_to_be_ordered() -> None:
    assert polled(after=simaccel.threads_are_ordered, between=lambda: None) == []
    assert len(polled(after=lambda: None, between=lambda: None)) == 1


def test_autograd_computes_in_a_thread_of_its_own_in_order_with_its_caller() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(8, 8).cuda()
    threads: set[int] = set()

    def block(tensor: Any) -> Any:
        threads.add(threading.get_ident())
        return layer(tensor).relu()

    def program() -> None:
        inputs = torch.ones(2, 8, device="cuda", requires_grad=True)
        checkpoint(block, inputs, use_reentrant=False).sum().backward()
        assert layer.weight.grad is not None
        layer.weight.grad.add_(1)

    assert findings_of(program) == []
    assert len(threads) == 2


def test_recomputation_on_a_side_stream_is_ordered_by_autograd() -> None:
    """Autograd runs an operation's backward on the stream of its forward, and orders the streams itself."""
    import torch

    def program() -> None:
        side = torch.cuda.Stream()
        inputs = torch.ones(NUM_ITEMS, device="cuda", requires_grad=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            product = inputs * 2
        torch.cuda.current_stream().wait_stream(side)
        product.record_stream(torch.cuda.current_stream())
        product.sum().backward()
        assert inputs.grad is not None
        assert inputs.grad.sum().item() == 2 * NUM_ITEMS

    assert findings_of(program) == []
