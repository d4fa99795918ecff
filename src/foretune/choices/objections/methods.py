"""How the model is changed: what goes with what."""

from collections.abc import Iterable

from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter, Lokr
from foretune.choices.objections.base import Objection, refused, warning

_WITH_DROPOUT = ("lora", "dora", "rslora")
"""The others have none in peft, or one that drops something else than inputs, or one that does nothing."""


def method_objections(experiment: Experiment) -> Iterable[Objection]:
    method = experiment.method
    if not isinstance(method, Adapter):
        return
    if method.dropout > 0 and method.kind not in _WITH_DROPOUT:
        yield refused(
            f"method.dropout: {method.kind} adapters have no dropout of their inputs. "
            "Nearest: method.dropout=0, or method.kind=lora"
        )
    if isinstance(method, Lokr) and method.factor == 0:
        yield refused(
            "method.factor: a matrix of 0 rows does not exist. Nearest: method.factor=-1, which makes both matrices "
            "about equal"
        )
    if method.training_adapter is not None:
        yield warning(
            "method.training_adapter is not in the forecast of memory: add the size of its file, in the dtype of "
            "train.precision"
        )
