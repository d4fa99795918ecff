"""Peak memory and energy of a run over all of its processes and hosts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from foretune.training.places import DevicePlace, watched_by
from foretune.training.ranks import Ranks
from foretune.training.telemetry.energy_sum import EnergySum


@dataclass(frozen=True)
class Totals:
    """Figures of one process, or of all of them. None is "not measured", never zero."""

    peak_device_bytes: int | None
    """Of all processes, that of the one that took most; so are the next two."""
    peak_reserved_bytes: int | None
    peak_host_bytes: int | None
    energy_j: float | None
    """Of the processors and the run's GPUs, of each host once."""
    mean_power_w: float | None


def measured_energy(energy: EnergySum, watched: Sequence[DevicePlace]) -> tuple[float | None, float | None, str | None]:
    """Returns energy and mean power of this host's part of a run, and what is missing in them, as a sentence.

    They are left out if they do not include every GPU of the run on this host: the processors alone take a fraction.
    """
    num_gpus = sum(place.is_gpu for place in watched)
    if energy.num_gpus >= num_gpus:
        return energy.energy_j, energy.mean_power_w, None
    if energy.num_gpus == 0:
        return None, None, None
    return None, None, f"Energy is left out: sensors report it for {energy.num_gpus} of {num_gpus} GPUs of this host."


def totals_of_run(
    own: Totals, ranks: Ranks, places: Sequence[DevicePlace], *, is_whole: bool
) -> tuple[Totals, str | None]:
    """Returns the figures of all processes, which all of them call, and what is missing in them, as a sentence.

    `is_whole`: no process is lost. Otherwise nothing is sent: memory is that of this process, and energy is left out
    where this process reads the sensors of one host among several.
    """
    if ranks.size == 1:
        return own, None
    num_hosts = len({place.host for place in places})
    if not is_whole:
        if num_hosts == 1:
            return own, None
        return _without_energy(own), f"Energy is left out: the run ended early, and it used {num_hosts} hosts."
    found = [Totals(**one) for one in ranks.from_all(asdict(own))]
    memory = (
        _most([one.peak_device_bytes for one in found]),
        _most([one.peak_reserved_bytes for one in found]),
        _most([one.peak_host_bytes for one in found]),
    )
    readers = [one for rank, one in enumerate(found) if watched_by(rank, places)]
    energies = [one.energy_j for one in readers if one.energy_j is not None]
    powers = [one.mean_power_w for one in readers if one.mean_power_w is not None]
    if energies and len(energies) < num_hosts:
        why = f"Energy is left out: sensors report it on {len(energies)} of {num_hosts} hosts."
        return Totals(*memory, energy_j=None, mean_power_w=None), why
    has_power = len(powers) == num_hosts
    return Totals(
        *memory, energy_j=sum(energies) if energies else None, mean_power_w=sum(powers) if has_power else None
    ), None


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _without_energy(own: Totals) -> Totals:
    return Totals(own.peak_device_bytes, own.peak_reserved_bytes, own.peak_host_bytes, None, None)
