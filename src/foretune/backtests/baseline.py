"""What a forecast must beat: parameters times bytes."""

from foretune import catalog
from foretune.backtests.questions import BacktestQuestion
from foretune.choices.experiment import Experiment
from foretune.choices.method import rank_of
from foretune.choices.quantize import DenoiserNumbers

_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_QUANTIZED_BYTES: dict[DenoiserNumbers, float] = {
    "int8": 1,
    "float8": 1,
    "float8-dynamic": 1,
    "int8-bnb": 1,
    "nf4": 0.5,
}


def baseline_bytes(asked: BacktestQuestion) -> int:
    """Weights, and the gradients and states of what is trained, by counts of the catalogue: no activations."""
    experiment = asked.experiment
    row = catalog.denoiser(asked.model)
    compute_bytes = _BYTES[experiment.train.precision]
    beside = sum(catalog.component(name).num_params for name in asked.resident) * compute_bytes
    if experiment.method.kind == "full":
        return row.num_params * _bytes_per_trained(experiment) + beside
    assert row.lora_params_per_rank is not None, "a denoiser has LoRA sizes"
    # Of other adapters the catalogue knows no sizes; those that are asked about are smaller than LoRA's.
    is_lora = experiment.method.kind == "lora"
    num_trained = row.lora_params_per_rank.attn_qkvo * rank_of(experiment.method) if is_lora else 0
    frozen_bytes = row.num_params * _QUANTIZED_BYTES.get(experiment.quantize.denoiser, compute_bytes)
    return round(frozen_bytes) + num_trained * _bytes_per_trained(experiment) + beside


def _bytes_per_trained(experiment: Experiment) -> int:
    """The weight, its gradient and its states, as far as they are on the device."""
    weight_bytes = _BYTES[experiment.train.weight_dtype]
    num_bytes = weight_bytes + (4 if experiment.train.ema is not None else 0)
    if not experiment.levers.fused_backward:
        num_bytes += weight_bytes
    if not experiment.levers.optimizer_offload:
        num_bytes += experiment.optimizer.spec.state_bytes_of(weight_bytes)
        num_bytes += weight_bytes if experiment.optimizer.compensation == "kahan" else 0
    return num_bytes
