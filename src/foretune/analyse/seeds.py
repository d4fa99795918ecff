"""Losses are compared over seeds: runs of one seed repeat one number, and how little they differ shows nothing."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from foretune.stats.deciding import Decision, decide

Seeded = Sequence[tuple[int, float]]
"""(seed, loss) of each run."""


def decide_over_seeds(a: Seeded, b: Seeded, names: tuple[str, str]) -> Decision:
    """The ratio b / a of losses, one value for each seed; in pairs where both sides have the same seeds.

    Losses that are equal in every run are "no difference shown" from one seed on: the same was computed.
    """
    if len({loss for _, loss in (*a, *b)}) == 1:
        return decide([loss for _, loss in a], [loss for _, loss in b], names=names)
    by_seed_a, by_seed_b = _by_seed(a), _by_seed(b)
    is_paired = by_seed_a.keys() == by_seed_b.keys()
    decision = decide(list(by_seed_a.values()), list(by_seed_b.values()), is_paired=is_paired, names=names)
    if min(len(by_seed_a), len(by_seed_b)) > 1:
        return decision
    alone = [name for name, seeds in zip(names, (by_seed_a, by_seed_b), strict=True) if len(seeds) == 1]
    have = "have" if len(alone) > 1 else "has"
    warning = f"{' and '.join(alone)} {have} one seed only: losses show a difference over several, train.seed"
    return replace(decision, warnings=(warning,))


def _by_seed(runs: Seeded) -> dict[int, float]:
    """The mean loss of each seed, in the order of the seeds."""
    losses: dict[int, list[float]] = {}
    for seed, loss in runs:
        losses.setdefault(seed, []).append(loss)
    return {seed: statistics.fmean(losses[seed]) for seed in sorted(losses)}
