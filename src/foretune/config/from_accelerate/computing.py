"""In which dtype a step computes, and whether it is compiled."""

from foretune.config.from_accelerate.config_keys import ConfigKeys
from foretune.config.from_accelerate.draft import Draft

_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_BACKENDS = (
    *("NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS", "OFI", "FX2TRT"),
    *("ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "IPEX", "TVM", "HPU_BACKEND", "NEURON"),
)
_DYNAMO = "dynamo_config.dynamo"


def set_precision(keys: ConfigKeys, draft: Draft) -> None:
    """`mixed_precision`; old files have `fp16: true` instead."""
    key = "mixed_precision"
    asked = keys.choice(key, _PRECISIONS, "fp16" if keys.boolean("fp16") else "no")
    if key in keys:
        keys.answer("fp16", "not needed", f"{key} comes first")
    else:
        key = "fp16"
        if key not in keys:
            draft.same.append("fp32 (train.precision): the file has no mixed_precision, which is fp32 there too.")
    if asked == "fp8":
        _set_fp8(keys, draft)
    elif asked == "no":
        take_precision(keys, key, draft, _full_precision(keys, draft))
    else:
        take_precision(keys, key, draft, asked)


def take_precision(keys: ConfigKeys, key: str, draft: Draft, precision: str) -> None:
    """Sets a precision, or bf16 where the other settings refuse it, and answers the key."""
    refusal = draft.refusal("train.precision", precision)
    if refusal is None:
        keys.answer(key, "translated", draft.take("train.precision", precision))
        return
    draft.take("train.precision", "bf16")
    keys.answer(key, "not supported", f"{refusal}, as in the sections above")
    draft.differs.append(
        "bf16 instead of fp16: it has the range of fp32, needs no loss scale, and rounds more coarsely. GPUs older "
        "than Ampere have no units for it; parallel.sharding=none keeps fp16."
    )


def _full_precision(keys: ConfigKeys, draft: Draft) -> str:
    """accelerate switches TF32 on where it compiles in fp32 for an NVIDIA GPU."""
    is_compiled = _backend(keys) != "NO"
    return "tf32" if is_compiled and draft.refusal("train.precision", "tf32") is None else "fp32"


def _set_fp8(keys: ConfigKeys, draft: Draft) -> None:
    backend = "fp8_config.fp8_backend"
    library = keys.choice(backend, ("AO", "TE", "MSAMP", "NO"), "AO")
    taken = draft.take("train.precision", "bf16")
    refusal = draft.refusal("quantize.denoiser", "float8-training")
    if refusal is not None:
        keys.answer("mixed_precision", "not supported", f"{refusal}; or {taken} alone, as in the sections above")
        keys.answer(backend, "not needed", "float8 is not used; see mixed_precision")
        return
    taken = f"{taken} {draft.take('quantize.denoiser', 'float8-training')}"
    keys.answer("mixed_precision", "translated", f"{taken}: matrix products in float8")
    if library == "AO":
        keys.answer(backend, "translated", "float8-training is torchao's")
    keys.answer(
        backend, "not supported", "float8 products are torchao's here. Nearest: quantize.denoiser=float8-training"
    )


def set_compile(keys: ConfigKeys, draft: Draft) -> None:
    """torch.compile: `dynamo_config`; old files have one key, `dynamo_backend`."""
    key = f"{_DYNAMO}_backend" if f"{_DYNAMO}_backend" in keys else "dynamo_backend"
    backend = _backend(keys)
    if backend == "NO":
        for name in (f"{_DYNAMO}_backend", "dynamo_backend"):
            keys.answer(name, "not needed", "off here too, unless the experiment sets levers.compile")
        for name in ("mode", "use_fullgraph", "use_dynamic", "use_regional_compilation"):
            keys.answer(f"{_DYNAMO}_{name}", "not needed", "nothing is compiled without a backend")
        return
    if backend != "INDUCTOR":
        keys.answer(key, "not supported", "blocks are compiled with inductor. Nearest: levers.compile=regional")
        return
    keys.answer(key, "translated", draft.take("levers.compile", "regional"))
    if keys.boolean(f"{_DYNAMO}_use_regional_compilation"):
        keys.answer(f"{_DYNAMO}_use_regional_compilation", "translated", "levers.compile=regional")
    else:
        text = "the repeated blocks are compiled, once for each kind, instead of the whole model"
        keys.answer(f"{_DYNAMO}_use_regional_compilation", "translated", f"levers.compile=regional: {text}")
        draft.differs.append(f"torch.compile: {text}.")
    if keys.choice(f"{_DYNAMO}_mode", ("default", "reduce-overhead", "max-autotune"), "default") != "default":
        keys.answer(f"{_DYNAMO}_mode", "not supported", "Nearest: torch.compile's default mode, which is used")
    keys.answer(f"{_DYNAMO}_mode", "not needed", "it is the mode that is used")
    keys.answer(f"{_DYNAMO}_use_fullgraph", "not needed", "each block is always compiled as one graph")
    if keys.boolean(f"{_DYNAMO}_use_dynamic"):
        text = "graphs have static sizes. Nearest: one graph for each image size, which is automatic"
        keys.answer(f"{_DYNAMO}_use_dynamic", "not supported", text)
    keys.answer(f"{_DYNAMO}_use_dynamic", "not needed", "graphs have static sizes")


def _backend(keys: ConfigKeys) -> str:
    key = f"{_DYNAMO}_backend"
    return keys.choice(key if key in keys else "dynamo_backend", _BACKENDS, "NO")
