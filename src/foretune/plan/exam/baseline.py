"""What a forecast must beat: parameters times bytes."""

from foretune import catalog
from foretune.plan.exam.questions import Question

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def baseline_bytes(asked: Question) -> int:
    """Weights, and the gradients and states of what is trained, by counts of the catalogue: no activations."""
    experiment = asked.experiment
    row = catalog.denoiser(asked.model)
    trained_bytes = _BYTES[experiment.train.weights]
    num_states = 3 if experiment.optimizer.compensation == "kahan" else 2
    per_trained = trained_bytes * (2 + num_states) + (4 if experiment.train.ema is not None else 0)
    compute_bytes = _BYTES[experiment.train.precision]
    beside = sum(catalog.component(name).num_params for name in asked.resident) * compute_bytes
    if experiment.method.kind == "full":
        return row.num_params * per_trained + beside
    assert row.lora_params_per_rank is not None, "a denoiser has LoRA sizes"
    num_trained = row.lora_params_per_rank.attn_qkvo * experiment.method.rank
    return row.num_params * compute_bytes + num_trained * per_trained + beside
