"""Adafactor of transformers: stores only the row and column sums of the averaged squares."""

import torch
from torch import Tensor

from foretune.step.optimizers.base import COUNT, Direct, Form, Layout, OptimizerRequest, Updater, like

_NUM_FACTORED = 2


def build(asked: OptimizerRequest) -> Updater:
    """Builds Adafactor without its own step sizes: they scale with the weights, and a fresh adapter is zero.

    The decay of its averages is as in the paper (1 - step ** -0.8). Its own epsilon is used too: AdamW's eps is far
    larger than the squares it would be added to.
    """
    from transformers.optimization import Adafactor

    inner = Adafactor(
        asked.weights,
        lr=asked.choice.lr,
        weight_decay=asked.choice.weight_decay,
        scale_parameter=False,
        relative_step=False,
    )
    return Direct(inner, Layout(of_weight=_sums, passing=frozenset({"RMS"})))


def _sums(weight: Tensor) -> dict[str, Form]:
    shape = tuple(weight.shape)
    if len(shape) < _NUM_FACTORED:
        return {"step": COUNT, "exp_avg_sq": like(weight, torch.float32)}
    return {
        "step": COUNT,
        "exp_avg_sq_row": Form(shape[:-1], torch.float32),
        "exp_avg_sq_col": Form((*shape[:-2], shape[-1]), torch.float32),
    }
