"""From a published row to a question, or to the reason why it cannot be asked. Decided from the row and the dialect."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from foretune import catalog
from foretune.backtests import words
from foretune.backtests.questions import BacktestQuestion, LeftOut, Published, RowSizes, Unfit
from foretune.catalog import Measurement
from foretune.choices.experiment import Experiment
from foretune.config.from_trainers.dialects import DIALECTS, Dialect, dialect_of, different_program

_USUAL_RANK = 16


def is_exact(row: Measurement) -> bool:
    """Whether a row belongs to the backtest of peaks: a training with its exact peak and all that a forecast needs."""
    return row.task == "train" and row.grade == "A" and row.bound == "exact" and row.peak_mem is not None


def question(row: Measurement, dialects: Sequence[Dialect] = DIALECTS) -> BacktestQuestion | LeftOut:
    """What a row asks. Rows without an exact peak ask only whether they fitted."""
    try:
        return _question(row, dialects)
    except Unfit as why:
        return LeftOut(row_id=row.id, source=row.framework, reason=str(why))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        return LeftOut(row_id=row.id, source=row.framework, reason=f"no experiment can be like it ({faults})")


def _question(row: Measurement, dialects: Sequence[Dialect]) -> BacktestQuestion:
    if row.task != "train":
        raise Unfit("it is not a training")
    assumptions: list[str] = []
    _check_method(row)
    _check_devices(row)
    optimizer = words.optimizer_in(row.optimizer)
    model = words.model_named(row.model)
    dialect = _dialect(row, dialects)
    numbers = words.quantizer_in(row.quantization, dialect)
    family = catalog.denoiser(model).family
    assert family is not None, "every denoiser has a family"
    checkpointing = words.checkpointing_in(
        row.grad_ckpt, dialect.intervals.get(family), offloads_attention=family in dialect.offload_is_of_attention
    )
    published = _published(row, dialect)
    sizes = _sizes(row, dialect, family, assumptions)
    method = _method(row, dialect, family, assumptions, must_be_exact=published is not None)
    caching, resident = _encoders(row, dialect, model)
    train = _train(row, dialect, optimizer, method["kind"], sizes.batch_size)
    levers = {
        **caching,
        "gradient_checkpointing": checkpointing.share,
        "checkpoint_segment": checkpointing.segment,
        "checkpoint_stride": checkpointing.stride,
        "activation_offload": checkpointing.offloads_attention,
        "activation_offload_parts": "attention" if checkpointing.offloads_attention else "blocks",
    }
    if optimizer.on_host:
        # Gradients leave one by one, so there is never a norm of all of them.
        levers |= {"optimizer_offload": True, "fused_backward": True}
        train["max_grad_norm"] = None
    quantize = {"denoiser": numbers, **dialect.overrides.get("quantize", {})} if numbers != "none" else {}
    asked = {
        "model": model,
        "method": method,
        "data": {"kind": "shapes", "max_text_tokens": max(8, sizes.num_text_tokens)},
        "train": train,
        "optimizer": {"kind": optimizer.kind, "compensation": "kahan" if optimizer.kahan else "none"},
        "quantize": quantize,
        "levers": levers,
    }
    device = words.device_named(row.gpu, row.gpu_mem_gb)
    return BacktestQuestion(
        row_id=row.id,
        source=row.framework,
        model=model,
        experiment=Experiment.model_validate(asked),
        sizes=sizes,
        dialect=dialect,
        resident=resident,
        loaded_before=_encoder_names(model, vae=True, text=True) if dialect.frees_encoders_late else (),
        published=published,
        fitted=row.fitted,
        device=device,
        device_bytes=_device_bytes(device, row.gpu_mem_gb),
        assumptions=tuple(assumptions),
    )


def _dialect(row: Measurement, dialects: Sequence[Dialect]) -> Dialect:
    if reason := different_program(row.framework):
        raise Unfit(f"another program ({row.framework}): {reason}")
    dialect = dialect_of(row.framework, dialects)
    if dialect is None:
        raise Unfit(f"{row.framework} has no dialect: what it keeps on the device, and in which dtype, is not known")
    return dialect


def _check_method(row: Measurement) -> None:
    kind = row.method.lower()
    if "controlnet" in kind:
        raise Unfit(f"the method {row.method}")
    if kind.startswith("q") and (row.quantization or "none").lower().startswith("none"):
        raise Unfit(f"the quantisation of the base is not stated ({row.method})")
    if "prior preservation" in kind:
        raise Unfit("prior preservation trains two images for each")
    if not kind.removeprefix("q").startswith(("lora", "lokr", "full")):
        raise Unfit(f"the method {row.method!r} is not understood")


def _check_devices(row: Measurement) -> None:
    if (row.num_gpus or 1) > 1:
        raise Unfit(f"{row.num_gpus} devices ({row.parallelism})")
    if (row.parallelism or "single").lower() != "single":
        raise Unfit(f"weights or states that are not all on one device ({row.parallelism})")


def _published(row: Measurement, dialect: Dialect) -> Published | None:
    span = row.peak_mem_bytes_range
    if row.bound != "exact" or span is None:
        return None
    peak = dialect.reads_peaks_as or words.peak_in(row.peak_mem_kind)
    return Published(peak=peak, num_bytes=span[0], most_bytes=span[1])


def _sizes(row: Measurement, dialect: Dialect, family: str, assumptions: list[str]) -> RowSizes:
    if row.batch_size_per_gpu is None:
        raise Unfit("the batch size is not stated")
    resolution = words.resolution_in(row.resolution)
    if resolution.assumption is not None:
        assumptions.append(resolution.assumption)
    if family not in dialect.num_text_tokens:
        raise Unfit(f"the number of text tokens that {row.framework} gives a {family} model is not known")
    return RowSizes(
        batch_size=row.batch_size_per_gpu,
        height_px=resolution.height_px,
        width_px=resolution.width_px,
        num_frames=row.num_frames or resolution.num_frames or 1,
        num_text_tokens=dialect.num_text_tokens[family],
    )


def _method(
    row: Measurement, dialect: Dialect, family: str, assumptions: list[str], *, must_be_exact: bool
) -> dict[str, Any]:
    if row.method.lower().startswith("full"):
        return {"kind": "full"}
    if "lokr" in row.method.lower():
        if not dialect.has_lokr:
            raise Unfit(f"how {row.framework} computes LoKr was not read")
        factor = words.kronecker_factor_in(row.as_published.get("lora_rank"))
        return {"kind": "lokr", "factor": factor, "full_matrix": True}
    rank = row.lora_rank
    if rank is None:
        if must_be_exact:
            raise Unfit("the adapter's rank is not stated")
        rank = _USUAL_RANK
        assumptions.append(f"the rank is not stated: {_USUAL_RANK}")
    targets = words.targets_in(row.lora_targets)
    if targets is None:
        assumptions.append("adapted modules are not named: the attention projections")
    else:
        targets = tuple(name for name in targets if name not in dialect.absent_targets.get(family, ()))
    return {"kind": "lora", "rank": rank, "targets": targets, "dropout": dialect.adapter_dropout}


def _train(
    row: Measurement, dialect: Dialect, optimizer: words.OptimizerWords, kind: str, batch_size: int
) -> dict[str, Any]:
    precision, said = words.precision_in(row.precision)
    weights = optimizer.weights or said or _usual_weights(dialect, kind, precision)
    if kind != "full" and dialect.reads_adapters_as is not None:
        weights = dialect.reads_adapters_as
    return {
        **dialect.overrides.get("train", {}),
        "steps": 1,
        "batch_size": batch_size,
        # Gradients that stay are there in every pass, as they are where several passes make a step.
        "gradient_accumulation": max(row.num_accumulation_steps or 1, 2 if dialect.keeps_gradients else 1),
        "precision": precision,
        "weight_dtype": weights,
        "ema": {} if optimizer.ema else None,
    }


def _usual_weights(dialect: Dialect, kind: str, precision: str) -> str:
    if precision != "bf16":
        return "fp32"
    return dialect.full_weights if kind == "full" else dialect.adapter_weights.get(precision, "fp32")


def _encoders(row: Measurement, dialect: Dialect, model: str) -> tuple[dict[str, bool], tuple[str, ...]]:
    """Levers, and what stays on the device while it trains."""
    unless_said = True if dialect.always_caches else None
    latents = words.is_cached(row.cache_latents, unless_said=unless_said)
    text = words.is_cached(row.cache_text_emb, unless_said=unless_said)
    text_stays = not text or "resident" in (row.cache_text_emb or "").lower()
    return {"cache_latents": latents, "cache_text": text}, _encoder_names(model, vae=not latents, text=text_stays)


def _encoder_names(model: str, *, vae: bool, text: bool) -> tuple[str, ...]:
    if not vae and not text:
        return ()
    system = catalog.denoiser(model).system
    if system is None or (text and system.not_in_catalogue):
        raise Unfit(f"the encoders beside {model} are on the device, and the catalogue does not have their size")
    return (
        *((system.vae,) if vae and system.vae is not None else ()),
        *(system.text_encoders if text else ()),
    )


def _device_bytes(device: str | None, memory_gb: float | None) -> int | None:
    if device is not None:
        return catalog.device(device).memory_bytes
    return None if memory_gb is None else round(memory_gb * 10**9)
