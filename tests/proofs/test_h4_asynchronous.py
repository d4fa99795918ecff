"""H4: what an asynchronous device does is timed on its own clock; a host that does not wait sees something else."""

from collections.abc import Callable

import pytest

from tests.conftest import ProofSize
from tests.proofs.fake_device import FakeDevice
from tests.proofs.fake_training import Work, train
from tests.virtual_clock import VirtualClock

pytestmark = pytest.mark.proof

WORKS = {
    "even": Work(),
    "long forward": Work(forward_s=0.015, backward_s=0.005),
    "many small": Work(forward_s=0.006, backward_s=0.012, num_launches=40, launch_s=0.00001),
}


@pytest.mark.parametrize("name", WORKS)
def test_h4_phases_of_an_asynchronous_device(
    name: str, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    """The truth is what the device was given to do; the device is never out of work, so a step takes just that."""
    work, num_steps = WORKS[name], proof_size(200, 20)
    true_s = {"forward": work.forward_s, "backward": work.backward_s, "optimizer": work.optimizer_s}
    host = VirtualClock()
    readings = list(train(FakeDevice(host), work, num_steps))
    wall_s = host()
    assert len(readings) == num_steps
    # The first steps fill the queue.
    steady = readings[num_steps // 4 :]
    errors, seen_by_host = {}, {}
    for phase, seconds in true_s.items():
        errors[phase] = sum(reading.phases_s[phase] for reading in steady) / len(steady) / seconds - 1
        # The control: the host's clock, in the steps before the queue is full and makes the host wait after all.
        on_host = sum((reading.host_phases_s or {})[phase] for reading in readings[:10]) / 10
        seen_by_host[phase] = seconds / on_host
    step_error = sum(reading.step_s for reading in steady) / len(steady) / sum(true_s.values()) - 1
    total_error = sum(reading.step_s for reading in readings) / wall_s - 1
    report_figure(
        f"{name}: phases off by {max(map(abs, errors.values())):.2%}, steps by {abs(step_error):.2%}, their sum by "
        f"{abs(total_error):.2%} of the wall time; the host without waiting sees the forward pass "
        f"{seen_by_host['forward']:.0f} times too short"
    )
    assert max(map(abs, errors.values())) <= 0.02
    assert abs(step_error) <= 0.02
    assert abs(total_error) <= 0.02
    assert min(seen_by_host.values()) > 5


def test_h4_the_loop_never_waits_for_the_device() -> None:
    """While the steps are handed over, nothing is waited for: the host only launches, the device owes every step."""
    work = Work(forward_s=0.02, backward_s=0.04, num_launches=2)
    host = VirtualClock()
    steps = train(FakeDevice(host), work, 10)
    first = next(steps)
    rest = list(steps)
    readings = [first, *rest]
    assert [reading.step for reading in readings] == list(range(10))
    on_host_s = [sum((reading.host_phases_s or {}).values()) for reading in readings]
    assert on_host_s == pytest.approx([5 * work.launch_s] * 10)
    assert [reading.num_owed for reading in readings] == list(range(10))
    # It waits at the end alone.
    assert host() == pytest.approx(10 * 0.061, abs=0.001)
