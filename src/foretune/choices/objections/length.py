"""How long a training lasts: what goes with a time instead of a number of steps."""

from collections.abc import Iterable

from foretune.choices.experiment import Experiment
from foretune.choices.objections.base import Objection, refused, warning


def length_objections(experiment: Experiment) -> Iterable[Objection]:
    train, schedule = experiment.train, experiment.optimizer.schedule
    if train.seconds is None:
        if train.clock != "steps":
            yield warning("train.clock has no effect: the length is not a time. Set train.seconds=600")
        return
    if schedule != "constant":
        yield refused(
            f"optimizer.schedule: {schedule} comes to zero at the last step, and a training of {train.seconds:g} s "
            "does not know beforehand which that is. Nearest: optimizer.schedule=constant (optimizer.warmup_steps goes "
            "with it), or train.seconds=null with train.steps=1000"
        )
