"""Every check on every device."""

from collections.abc import Callable, Collection, Iterator
from typing import get_args

import torch

from foretune.checkup import attention, compiling, host, quantising, training
from foretune.checkup.distributing import examine_collectives
from foretune.checkup.finding import Check, CheckResult, examined
from foretune.checkup.groups import Group
from foretune.checkup.versions import examine_versions
from foretune.training.devices import available_devices

DEVICE_CHECKS: tuple[Check, ...] = (
    *training.CHECKS,
    *attention.CHECKS,
    *quantising.CHECKS,
    *compiling.CHECKS,
)
HOST_CHECKS: tuple[Check, ...] = host.CHECKS


def examine(
    about_to: Callable[[str], None] = lambda _: None, only: Collection[Group] = get_args(Group)
) -> Iterator[CheckResult]:
    """Every finding as it is made; `about_to` is called with what is examined next."""
    if "versions" in only:
        about_to("versions")
        yield from examine_versions()
    for device in available_devices():
        for check in DEVICE_CHECKS:
            if check.group in only and (check.device_types is None or device.type in check.device_types):
                about_to(f"{check.operation} on {device}")
                yield examined(check, device)
    for check in HOST_CHECKS:
        if check.group in only:
            about_to(check.operation)
            yield examined(check, torch.device("cpu"), shown="host")
    if "distributed" in only:
        about_to("collectives between processes")
        yield from examine_collectives()
