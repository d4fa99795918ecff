"""A shared measurement as a row: the catalogue's columns, and four more that hold a JSON object each.

Rows come from strangers. A cell is data and nothing else: closed fields, bounded numbers, short texts, and no name that
leads to a file.
"""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from foretune import catalog
from foretune.catalog import Measurement
from foretune.choices.experiment import Experiment
from foretune.choices.model import SHIPPED_MODELS
from foretune.core.errors import UserError
from foretune.core.input_files import parse_json
from foretune.core.values.base import content_hash

CATALOGUE_COLUMNS = tuple(
    field.alias or name for name, field in Measurement.model_fields.items() if name != "as_published"
)
JSON_COLUMNS = ("experiment", "measured", "plan", "environment")
COLUMNS = (*CATALOGUE_COLUMNS, *JSON_COLUMNS)
FRAMEWORK = "foretune"
UNLISTED = "not in the catalogue"
MOST_CELL_CHARACTERS = 8192
"""A row of ours has about 1,500 characters in its longest cell."""

Count = Annotated[int, Field(ge=1, le=10**7)]
Bytes = Annotated[int, Field(ge=1, le=2**50)]
Weights = Annotated[int, Field(ge=1, le=10**13)]
Seconds = Annotated[float, Field(gt=0, le=10**7)]
Flops = Annotated[float, Field(gt=0, le=1e24)]
Word = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[\w .,:;()+/@<>=~-]+$")]
_MOST_SAMPLES = 4096
_NOT_OF_THE_STEP = ("start_from", "training_adapter")


class _Cell(BaseModel):
    """The content of one cell: frozen, closed to unknown fields, no infinity and no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


CellT = TypeVar("CellT", bound=_Cell)


class SharedMeasured(_Cell):
    """What was measured. None is "not measured"."""

    num_runs: Count
    num_steps: Count
    """Of each run."""
    samples_per_step: Count
    step_s: Seconds
    """All time over all steps after warm-up, mean over the runs."""
    step_low_s: Annotated[float, Field(ge=0, le=10**7)] | None
    """Of the 95 % interval, as the next."""
    step_high_s: Seconds | None
    allocated_bytes: Bytes | None
    reserved_bytes: Bytes | None
    process_bytes: Bytes | None
    """Of the process in host memory."""
    context_bytes: Bytes | None
    """Of `process_bytes`: what the process took before the model, where the host is the device."""
    num_params: Weights
    num_trained_params: Weights
    height_px: Annotated[int, Field(ge=1, le=16384)]
    width_px: Annotated[int, Field(ge=1, le=16384)]
    num_frames: Annotated[int, Field(ge=1, le=4096)]
    hardware_flops: Flops | None
    """Of one step, with what is recomputed."""
    peak_flops_per_s: Flops | None
    """Of the device, in the dtype of the training."""
    is_peak_measured: bool
    is_synthetic: bool
    has_random_weights: bool


class SharedPlan(_Cell):
    """What was predicted on the machine that measured, before it measured."""

    allocated_bytes: Bytes
    reserved_bytes: Bytes
    process_low_bytes: Bytes
    process_bytes: Bytes
    process_high_bytes: Bytes
    step_s: Seconds | None
    step_low_s: Seconds | None
    step_high_s: Seconds | None


class SharedEnvironment(_Cell):
    """Where it was measured: nothing that names a person, a machine or a folder."""

    device_kind: Literal["cpu", "cuda", "rocm", "mps"]
    device: Word
    """As its driver calls it."""
    device_bytes: Annotated[int, Field(ge=2**28, le=2**42)]
    """256 MiB to 4 TiB: what a device of the catalogue may have."""
    num_threads: Annotated[int, Field(ge=1, le=4096)]
    foretune: Word
    python: Word
    system: Word
    torch: Word
    accelerator_version: Word | None
    """Of CUDA or HIP, as torch was built with."""
    driver: Word | None
    packages: Annotated[dict[Word, Word], Field(max_length=20)]


@dataclass(frozen=True, kw_only=True)
class SharedRow:
    """One shared measurement."""

    row_id: str
    model: str
    """A name of the catalogue or of a model that comes with Foretune; or that it is neither, with its class."""
    experiment: Experiment
    """What decides what a step computes; the rest are defaults."""
    measured: SharedMeasured
    plan: SharedPlan | None
    environment: SharedEnvironment
    notes: str | None = None

    @property
    def is_listed(self) -> bool:
        return is_listed(self.model)

    def samples_per_s(self) -> float:
        return self.measured.samples_per_step / self.measured.step_s

    def cells(self) -> dict[str, str]:
        """The row, in the order of the columns."""
        measured, environment, sections = self.measured, self.environment, public_experiment(self.experiment)
        method, train, levers = (sections[name] for name in ("method", "train", "levers"))
        peak_bytes = measured.process_bytes if environment.device_kind == "cpu" else measured.reserved_bytes
        kind = "process RSS" if environment.device_kind == "cpu" else "max_memory_reserved"
        rate = f"{self.samples_per_s():.6g}"
        named: dict[str, Any] = {
            "id": self.row_id,
            "subset": "extended",
            "task": "train",
            "model": self.model,
            "params_b": f"{measured.num_params / 1e9:.6g}",
            "method": method["kind"],
            "lora_rank": method.get("rank"),
            "lora_targets": None if method.get("targets") is None else ",".join(method["targets"]),
            "precision": train["precision"],
            "quantization": sections["quantize"]["denoiser"],
            "optimizer": sections["optimizer"]["kind"],
            "batch_per_gpu": train["batch_size"],
            "grad_accum": train["gradient_accumulation"],
            "resolution": f"{measured.width_px}x{measured.height_px}",
            "frames": measured.num_frames,
            "grad_ckpt": f"{levers['gradient_checkpointing']:g} of the blocks",
            "cache_latents": "yes" if levers["cache_latents"] else "no",
            "cache_text_emb": "yes" if levers["cache_text"] else "no",
            "parallelism": "single",
            "n_gpus": 1,
            "gpu": environment.device,
            "gpu_mem_gb": f"{environment.device_bytes / 2**30:.4g}",
            "framework": f"{FRAMEWORK} {environment.foretune}",
            "fits": "fits",
            "peak_mem": None if peak_bytes is None else f"{peak_bytes / 2**30:.6g}",
            "peak_mem_unit": None if peak_bytes is None else "GiB",
            "peak_mem_kind": None if peak_bytes is None else kind,
            "peak_bound": None if peak_bytes is None else "exact",
            "speed": rate,
            "speed_unit": "samples/s",
            "samples_per_s_per_gpu": rate,
            "grade": "A",
            "source": "foretune bench --share",
            "source_commit": None,
            "notes": self.notes,
            "experiment": compact(sections),
            "measured": compact(measured.model_dump()),
            "plan": None if self.plan is None else compact(self.plan.model_dump()),
            "environment": compact(environment.model_dump()),
        }
        return {name: "" if named[name] is None else str(named[name]) for name in COLUMNS}


def is_listed(model: str) -> bool:
    """Whether anybody who has Foretune knows the model by this name."""
    return model in catalog.denoisers() or model in SHIPPED_MODELS


def compact(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=True)


def as_csv(cells: Mapping[str, str], *, has_header: bool) -> str:
    """One line of a CSV file, and the header before it if asked."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    if has_header:
        writer.writeheader()
    writer.writerow(cells)
    return out.getvalue()


def id_of(sections: Mapping[str, Any], measured: SharedMeasured, environment: SharedEnvironment) -> str:
    """Equal for the same measurement, so that a row that is sent twice is seen."""
    return f"FT-{content_hash([dict(sections), measured.model_dump(), environment.model_dump()])}"


def public_experiment(experiment: Experiment) -> dict[str, Any]:
    """Of an `Experiment`, what decides what a step computes: no path, no prompt, no name."""
    whole = experiment.model_dump(mode="json", by_alias=True)
    method = whole["method"]
    if any(method.get(key) is not None for key in _NOT_OF_THE_STEP):
        raise UserError(
            "A measurement with an adapter that is read from a folder cannot be shared: nobody else has that folder. "
            "Leave out method.start_from and method.training_adapter."
        )
    train_keys = ("batch_size", "gradient_accumulation", "precision", "weight_dtype", "max_grad_norm", "ema")
    return {
        "method": {key: value for key, value in method.items() if key not in _NOT_OF_THE_STEP},
        "train": {key: whole["train"][key] for key in train_keys},
        "optimizer": {key: whole["optimizer"][key] for key in ("kind", "compensation")},
        "quantize": whole["quantize"],
        "levers": whole["levers"],
        "data": {"max_text_tokens": whole["data"]["max_text_tokens"]},
    }


def is_shared(cells: Mapping[str, str | None]) -> bool:
    """Whether a row says that `foretune bench --share` wrote it."""
    return (cells.get("framework") or "").partition(" ")[0].lower() == FRAMEWORK


def shared_row(cells: Mapping[str, str | None]) -> SharedRow:
    """The row of these cells. Raises ValueError with what is wrong with it, in one line."""
    for name in COLUMNS:
        if len(cells.get(name) or "") > MOST_CELL_CHARACTERS:
            raise ValueError(f"{name}: more than {MOST_CELL_CHARACTERS} characters")
    model = cells.get("model") or ""
    if not (is_listed(model) or model.startswith(UNLISTED)):
        raise ValueError("model: it is neither in the catalogue nor marked as not in it")
    sections = _object(cells, "experiment")
    measured = _parsed(SharedMeasured, cells, "measured")
    environment = _parsed(SharedEnvironment, cells, "environment")
    row = SharedRow(
        row_id=cells.get("id") or "",
        model=model,
        experiment=_experiment(model, sections),
        measured=measured,
        plan=_parsed(SharedPlan, cells, "plan") if cells.get("plan") else None,
        environment=environment,
        notes=cells.get("notes"),
    )
    if row.row_id != id_of(sections, measured, environment):
        raise ValueError("id: it does not belong to this content, so the row was changed after it was measured")
    _require_same_columns(row, cells)
    return row


def _experiment(model: str, sections: Mapping[str, Any]) -> Experiment:
    """Raises ValueError for anything but choices of a step, such as a path."""
    data, train = sections.get("data"), sections.get("train")
    if not isinstance(data, dict) or not isinstance(train, dict):
        raise ValueError("experiment: it needs the sections data and train")
    mapping = {
        **sections,
        "model": model,
        "data": {**data, "kind": "shapes"},
        "train": {**train, "steps": 1},
    }
    try:
        experiment = Experiment.model_validate(mapping)
    except ValidationError as error:
        raise ValueError(f"experiment: {_faults(error)}") from None
    method = sections.get("method")
    if not isinstance(method, dict) or any(key in method for key in _NOT_OF_THE_STEP):
        raise ValueError("experiment: method is not a choice of a step")
    public = public_experiment(experiment)
    for section, content in sections.items():
        known = public.get(section)
        foreign = [key for key in content if known is None or key not in known]
        if known is None or foreign:
            raise ValueError(f"experiment: {'.'.join([section, *foreign[:1]])} is not a choice of a step")
    if experiment.train.batch_size > _MOST_SAMPLES or experiment.train.gradient_accumulation > _MOST_SAMPLES:
        raise ValueError(f"experiment: more than {_MOST_SAMPLES} samples or passes in a step")
    return experiment


def _require_same_columns(row: SharedRow, cells: Mapping[str, str | None]) -> None:
    """What a person reads in the catalogue's columns is what the objects say."""
    for name, text in row.cells().items():
        if name not in JSON_COLUMNS and (cells.get(name) or "") != text:
            raise ValueError(f"{name}: it differs from what the row's objects say, so the row was changed")


def _object(cells: Mapping[str, str | None], column: str) -> dict[str, Any]:
    try:
        found = parse_json(cells.get(column) or "")
    except ValueError as error:
        raise ValueError(f"{column}: it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{column}: it is not a JSON object")
    return found


def _parsed(cell_type: type[CellT], cells: Mapping[str, str | None], column: str) -> CellT:
    try:
        return cell_type.model_validate(_object(cells, column), strict=True)
    except ValidationError as error:
        raise ValueError(f"{column}: {_faults(error)}") from None


def _faults(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
