"""What the engines of several devices send in a step, and how long computation waits for it.

DDP sums gradients in buckets while the backward pass goes on, in the last of accumulated passes only. FSDP2 gathers the
weights of each block before it runs, one block ahead, in the forward and again in the backward pass, and reduces its
gradients after it, in every pass. With HSDP the reduced parts are then summed over the groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foretune.planner.timing.interconnect import Group, Interconnect, collective_s
from foretune.planner.timing.speed import DeviceSpeed

BUCKET_BYTES = 25 * 2**20
"""torch's default for the buckets of DDP."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Weights that are gathered and reduced together: equal blocks, or what is outside of them. Figures are of one."""

    count: int = 1
    weight_bytes: float = 0.0
    """Of whole weights, as they are gathered."""
    gradient_bytes: float = 0.0
    """Of whole gradients, as they are reduced."""
    forward_s: float = 0.0
    """Computation of one pass."""
    backward_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class UnitLayout:
    """A model as the engines see it: blocks in the order they run, and the rest."""

    blocks: tuple[Unit, ...]
    outside: Unit = Unit()


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Of one optimizer step of one device."""

    total_s: float = 0.0
    exposed_s: float = 0.0
    """What computation waits for."""
    sent_bytes: float = 0.0
    """What a device sends; it receives as much."""
    num_collectives: float = 0.0

    @property
    def hidden_s(self) -> float:
        return max(0.0, self.total_s - self.exposed_s)

    def plus(self, other: "Communication", times: float = 1.0) -> "Communication":
        return Communication(
            total_s=self.total_s + times * other.total_s,
            exposed_s=self.exposed_s + times * other.exposed_s,
            sent_bytes=self.sent_bytes + times * other.sent_bytes,
            num_collectives=self.num_collectives + times * other.num_collectives,
        )


NOTHING_SENT = Communication()


@dataclass(frozen=True, kw_only=True)
class Links:
    """The devices of a run, and what connects them."""

    shards: Group
    """Those that share one copy of the weights."""
    replicas: Group
    """Those that hold the same part of the weights."""
    speed: DeviceSpeed
    interconnect: Interconnect

    def gather_s(self, num_bytes: float) -> float:
        return collective_s("all_gather", num_bytes, self.shards, self.speed, self.interconnect)

    def scatter_s(self, num_bytes: float) -> float:
        return collective_s("reduce_scatter", num_bytes, self.shards, self.speed, self.interconnect)

    def sum_s(self, num_bytes: float) -> float:
        """Sums a device's part of gradients over all copies of the model."""
        return collective_s("all_reduce", num_bytes / self.shards.size, self.replicas, self.speed, self.interconnect)

    def reduce_s(self, num_bytes: float) -> float:
        """Both, one after the other."""
        return self.scatter_s(num_bytes) + self.sum_s(num_bytes)

    @property
    def gathered_share(self) -> float:
        """What a device sends of a buffer that is gathered or scattered."""
        return (self.shards.size - 1) / self.shards.size

    @property
    def summed_share(self) -> float:
        """What a device sends of a buffer that is summed over the copies of the model."""
        return 2 * (self.replicas.size - 1) / self.replicas.size / self.shards.size


def bucketed(layout: UnitLayout, links: Links, bucket_bytes: float = BUCKET_BYTES) -> Communication:
    """Returns one backward pass in which gradients are reduced in buckets, in the order they are made.

    A bucket is sent when it is full; the last one, which may not be, after the backward pass. Within a block, gradients
    arrive evenly. Those outside the blocks are the last ones.
    """
    bucket_s = links.reduce_s(bucket_bytes)
    computed_s = sent_s = pending = num_full = num_bytes = 0.0
    blocks = (unit for unit in reversed(layout.blocks) for _ in range(unit.count))
    for unit in (*blocks, layout.outside):
        full = (pending + unit.gradient_bytes) // bucket_bytes
        if full:
            # When the first and the last of these buckets are full.
            first_s, last_s = (
                computed_s + unit.backward_s * (buckets * bucket_bytes - pending) / unit.gradient_bytes
                for buckets in (1, full)
            )
            sent_s = max(max(sent_s, first_s) + full * bucket_s, last_s + bucket_s)
        pending += unit.gradient_bytes - full * bucket_bytes
        computed_s += unit.backward_s
        num_full += full
        num_bytes += unit.gradient_bytes
    if not num_bytes:
        return NOTHING_SENT
    rest_s = links.reduce_s(pending)
    sent_s = max(sent_s, computed_s) + rest_s
    return Communication(
        total_s=num_full * bucket_s + rest_s,
        exposed_s=sent_s - computed_s,
        sent_bytes=num_bytes * (links.gathered_share + links.summed_share),
        num_collectives=(num_full + (pending > 0)) * (2 if links.shards.size > 1 and links.replicas.size > 1 else 1),
    )


def sharded_pass(layout: UnitLayout, links: Links, *, gathers_again: bool = True) -> Communication:
    """Returns a forward and backward pass with sharded weights.

    `gathers_again`: weights of blocks are freed after the forward pass, and gathered again in the backward pass.
    """
    units = [unit for unit in layout.blocks for _ in range(unit.count)]
    gathers = _of_all(layout, lambda unit: links.gather_s(unit.weight_bytes))
    rest_s = links.gather_s(layout.outside.weight_bytes)
    forward = _ahead([unit.forward_s for unit in units], gathers)
    scatters = _of_all(layout, lambda unit: links.scatter_s(unit.gradient_bytes))[::-1]
    sums = _of_all(layout, lambda unit: links.sum_s(unit.gradient_bytes))[::-1]
    again = gathers[::-1] if gathers_again else [0.0] * len(gathers)
    backward = _ahead([unit.backward_s for unit in reversed(units)], again, scatters, sums)
    last_s = links.reduce_s(layout.outside.gradient_bytes)
    num_weight_bytes, num_gradient_bytes = (
        sum(getattr(unit, name) for unit in units) for name in ("weight_bytes", "gradient_bytes")
    )
    times = 2 if gathers_again else 1
    num_reducing = sum(1 for unit in (*units, layout.outside) if unit.gradient_bytes)
    return Communication(
        total_s=rest_s + sum(gathers) + sum(again) + sum(scatters) + sum(sums) + last_s,
        exposed_s=rest_s + forward + backward + last_s,
        sent_bytes=links.gathered_share * (times * num_weight_bytes + layout.outside.weight_bytes)
        + (links.gathered_share + links.summed_share) * (num_gradient_bytes + layout.outside.gradient_bytes),
        num_collectives=times * len(units) + 1 + num_reducing * (2 if links.replicas.size > 1 else 1),
    )


def _of_all(layout: UnitLayout, seconds: Callable[[Unit], float]) -> list[float]:
    """Returns a time of each block; equal blocks share it."""
    return [second for unit in layout.blocks for second in [seconds(unit)] * unit.count]


def _ahead(
    computing: Sequence[float],
    gathers: Sequence[float],
    scatters: Sequence[float] = (),
    sums: Sequence[float] = (),
) -> float:
    """Returns what computation waits for in a pass through blocks, in the order of the pass.

    While a block computes, the next one is gathered and the one before is reduced: over the same link, one after the
    other. Sums over copies of the model go over the network meanwhile.
    """
    if not computing:
        return 0.0
    exposed_s = gathers[0]
    for number, compute_s in enumerate(computing):
        inside_s = gathers[number + 1] if number + 1 < len(gathers) else 0.0
        across_s = 0.0
        if number:
            inside_s += scatters[number - 1] if scatters else 0.0
            across_s = sums[number - 1] if sums else 0.0
        exposed_s += max(0.0, inside_s - compute_s, across_s - compute_s)
    return exposed_s + (scatters[-1] if scatters else 0.0) + (sums[-1] if sums else 0.0)
