"""Which GPU each process has, which sensors it reads, and what their figures come to."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch

from foretune.core.errors import Refused
from foretune.training.places import DevicePlace, place_on, places_of, watched_by
from foretune.training.ranks import Ranks
from foretune.training.run_totals import Totals, measured_energy, totals_of_run
from foretune.training.telemetry.energy_sum import EnergySum

CPU = torch.device("cpu")
GPU = DevicePlace("node1", "cuda:0", "uuid-0", "0000:11:00")


@dataclass(frozen=True)
class Others(Ranks):
    """Processes whose values are known."""

    values: tuple[Any, ...] = ()

    def from_all(self, value: Any) -> list[Any]:
        return list(map(asdict, self.values))


def test_processes_that_see_one_gpu_each() -> None:
    places = (GPU, replace(GPU, uuid="uuid-1", pci_address="0000:21:00"))
    assert places_of(Others(0, 2, values=places), CPU) == places


@pytest.mark.parametrize(
    "places",
    [
        (GPU, GPU),
        (GPU, replace(GPU, host="container2")),
        (replace(GPU, uuid=None), replace(GPU, uuid=None)),
        (DevicePlace("node1", "cuda:0"), DevicePlace("node1", "cuda:0")),
    ],
    ids=["one host", "two containers", "no UUID", "neither UUID nor address"],
)
def test_processes_that_share_a_gpu_are_refused(places: tuple[DevicePlace, ...]) -> None:
    with pytest.raises(Refused, match=r"2 processes share 1 GPU, .* Nearest: parallel\.devices=1"):
        places_of(Others(0, 2, values=places), CPU)


@pytest.mark.parametrize(
    "places",
    [
        (DevicePlace("node1", "cpu"), DevicePlace("node1", "cpu")),
        (DevicePlace("node1", "cuda:0"), DevicePlace("node2", "cuda:0")),
        (replace(GPU, uuid=None), replace(GPU, uuid=None, host="virtual2")),
    ],
    ids=["CPUs", "nodes", "equal addresses of two hosts"],
)
def test_processes_that_share_none(places: tuple[DevicePlace, ...]) -> None:
    assert places_of(Others(0, 2, values=places), CPU) == places


def test_a_process_on_the_cpu_is_nowhere_else() -> None:
    assert (place_on(CPU).device, place_on(CPU).is_gpu) == ("cpu", False)


def test_the_first_process_of_each_host_reads_the_sensors_there() -> None:
    places = [DevicePlace(host, f"cuda:{index}", f"{host}-{index}") for host in ("a", "b") for index in range(2)]
    watched = [watched_by(rank, places) for rank in range(4)]
    assert watched == [tuple(places[:2]), (), tuple(places[2:]), ()]


def totals(energy_j: float | None, peak_bytes: int | None = 1) -> Totals:
    return Totals(peak_bytes, peak_bytes, peak_bytes, energy_j, None if energy_j is None else energy_j / 10)


PLACES = [
    DevicePlace("a", "cuda:0"),
    DevicePlace("a", "cuda:1"),
    DevicePlace("b", "cuda:0"),
    DevicePlace("b", "cuda:1"),
]


@pytest.mark.parametrize(
    ("found", "expected", "missing"),
    [
        ([totals(300.0, 5), totals(None, 9), totals(100.0, 7), totals(None)], totals(400.0, 9), None),
        ([totals(None, None)] * 4, totals(None, None), None),
        ([totals(300.0), totals(None), totals(None), totals(None)], totals(None), "on 1 of 2 hosts"),
    ],
    ids=["all", "no sensor", "a host without sensors"],
)
def test_figures_of_all_processes(found: list[Totals], expected: Totals, missing: str | None) -> None:
    ranks = Others(0, 4, values=tuple(found))
    answer, why = totals_of_run(found[0], ranks, PLACES, is_whole=True)
    assert answer == expected
    assert why is None if missing is None else missing in str(why)


@pytest.mark.parametrize(
    ("sources", "num_gpus", "energy_j", "missing"),
    [
        (("nvidia:0", "nvidia:1", "rapl:package-0"), 2, 300.0, None),
        (("nvidia:0", "rapl:package-0"), 2, None, "for 1 of 2 GPUs of this host"),
        (("rapl:package-0",), 1, None, None),
        (("rapl:package-0",), 0, 100.0, None),
    ],
    ids=["all", "one of two GPUs", "processors only", "a run on the CPU"],
)
def test_energy_without_that_of_every_gpu_is_left_out(
    sources: tuple[str, ...], num_gpus: int, energy_j: float | None, missing: str | None
) -> None:
    energy = EnergySum()
    for time_s in (0.0, 1.0):
        energy.add(time_s, {source: {"power_w": 100.0} for source in sources})
    watched = [DevicePlace("host", f"cuda:{index}") for index in range(num_gpus)] or [DevicePlace("host", "cpu")]
    found_j, power_w, why = measured_energy(energy, watched)
    assert (found_j, power_w) == (energy_j, energy_j)
    assert why is None if missing is None else missing in str(why)


def test_a_run_that_lost_a_process_has_the_energy_of_one_host_or_none() -> None:
    own, ranks = totals(300.0, 5), Ranks(0, 4)
    assert totals_of_run(own, ranks, PLACES[:2], is_whole=False) == (own, None)
    answer, why = totals_of_run(own, ranks, PLACES, is_whole=False)
    assert (answer.energy_j, answer.mean_power_w, answer.peak_device_bytes) == (None, None, 5)
    assert "2 hosts" in str(why)
