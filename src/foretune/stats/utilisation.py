"""Which share of a device's peak a measured speed makes up."""

from foretune.core.errors import UserError


class ImpossibleSpeed(UserError):
    """More was computed than the device can: one of the three numbers is wrong, so none of them is reported."""

    exit_code = 1


def utilisation(flops: float, seconds: float, peak_flops_per_s: float, source: str) -> float:
    """Operations done in the time, over those that the peak would do in it: at most 1, or an error."""
    share = flops / seconds / peak_flops_per_s
    if share > 1:
        raise ImpossibleSpeed(
            f"{flops:.3g} FLOPs in {seconds:.3g} s are {share:.0%} of {peak_flops_per_s:.3g} FLOP/s ({source}), and "
            "nothing computes faster than its peak: the clock, the count or the peak is wrong. If this device's peak "
            "is higher than the catalogue says, please report it."
        )
    return share
