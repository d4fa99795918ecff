"""What a machine can run at once: tasks on its accelerators, one on each, and tasks on its CPU."""

from dataclasses import dataclass, field

from foretune.executors.task import Resources


@dataclass(frozen=True)
class Slot:
    """What a running task has for itself."""

    devices: tuple[str, ...]
    """As the driver's variable names them; empty for a task on the CPU."""


@dataclass
class Slots:
    """What is free."""

    devices: list[str]
    num_cpu_tasks: int
    """Tasks without an accelerator that may run at once."""
    _order: dict[str, int] = field(init=False)
    """Places in the list that was given: devices are taken in the order of their owner, whatever their names are."""

    def __post_init__(self) -> None:
        self._order = {device: place for place, device in enumerate(self.devices)}

    def can_ever_hold(self, resources: Resources) -> bool:
        return resources.num_nodes == 1 and resources.num_devices <= len(self._order)

    def take(self, resources: Resources) -> Slot | None:
        """A slot for a task; None if it has to wait."""
        if resources.num_devices > 0:
            if resources.num_devices > len(self.devices):
                return None
            taken, self.devices = self.devices[: resources.num_devices], self.devices[resources.num_devices :]
            return Slot(tuple(taken))
        if self.num_cpu_tasks == 0:
            return None
        self.num_cpu_tasks -= 1
        return Slot(())

    def give_back(self, slot: Slot) -> None:
        if slot.devices:
            self.devices = sorted([*self.devices, *slot.devices], key=self._order.__getitem__)
        else:
            self.num_cpu_tasks += 1
