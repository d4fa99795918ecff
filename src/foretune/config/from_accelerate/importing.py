"""From the file that `accelerate config` writes to the settings of an experiment. accelerate itself is not needed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.config.from_accelerate.cluster import Cluster, read_cluster
from foretune.config.from_accelerate.computing import set_compile, set_precision
from foretune.config.from_accelerate.config_keys import ConfigKeys, KeyAnswer
from foretune.config.from_accelerate.deepspeed import FILE_KEY, from_deepspeed
from foretune.config.from_accelerate.draft import Draft
from foretune.config.from_accelerate.known_keys import (
    ACCELERATE,
    DEEPSPEED,
    DEEPSPEED_JSON,
    FP8,
    FSDP,
    MEGATRON,
    answer_rest,
)
from foretune.config.from_accelerate.sharding import from_fsdp, from_megatron, read_replicas, share
from foretune.config.yaml_files import load_foreign_mapping
from foretune.core.errors import ExperimentErrors, Refused, UserError
from foretune.core.input_files import MOST_JSON_BYTES, read_json

# Sections, and how `accelerate launch` completes names in them.
_SECTIONS = {
    "fsdp_config": "fsdp",
    "dynamo_config": "dynamo",
    "fp8_config": "fp8",
    "deepspeed_config": "",
    "megatron_lm_config": "",
    "parallelism_config": "",
    "mpirun_config": "",
    "ipex_config": "",
    "tp_config": "",
}


@dataclass(frozen=True)
class Translation:
    """What a file became."""

    settings: Mapping[str, Any]
    """Settings of an experiment by dotted key."""
    answers: tuple[KeyAnswer, ...]
    """What became of each key, in the order of the file."""
    same: tuple[str, ...]
    """What is as it was."""
    differs: tuple[str, ...]
    """What is not."""
    start: str
    """The command that starts a training on these devices."""
    num_machines: int


def translate(path: Path, if_missing: str) -> Translation:
    """Reads an accelerate config; raises with every mistake at once. `if_missing` is where such a file is found."""
    mapping = load_foreign_mapping(
        path,
        if_missing=if_missing,
        example="`distributed_type: MULTI_GPU`: the file that `accelerate config` writes",
    )
    _require_accelerate_config(path, mapping)
    keys = _keys_of(mapping)
    draft = Draft()
    cluster = read_cluster(keys, draft)
    json_keys = _json_keys(path, keys) if cluster.kind == "DEEPSPEED" else None
    _translate_engine(keys, json_keys, cluster, draft)
    if json_keys is None:
        set_precision(keys, draft)
    set_compile(keys, draft)
    answer_rest(keys, (*ACCELERATE, *FSDP, *FP8, *MEGATRON, *DEEPSPEED), dict(_unused(keys, cluster.kind)))
    if json_keys is not None:
        answer_rest(json_keys, DEEPSPEED_JSON, {})
    problems = [*keys.problems, *(json_keys.problems if json_keys is not None else ())]
    if problems:
        raise ExperimentErrors(str(path), problems)
    answers = (*keys.answers, *(json_keys.answers if json_keys is not None else ()))
    return Translation(
        draft.settings, answers, tuple(draft.same), tuple(draft.differs), cluster.start, cluster.machines
    )


def _require_accelerate_config(path: Path, mapping: Mapping[str, Any]) -> None:
    if mapping.get("compute_environment") == "AMAZON_SAGEMAKER":
        raise Refused(
            f"{path}: compute_environment: Foretune starts no jobs at Amazon SageMaker. Nearest: a job or a machine "
            "with GPUs that runs: foretune train experiment.yaml parallel.devices=8"
        )
    if "zero_optimization" in mapping:
        raise UserError(
            f"{path} is a DeepSpeed config. Name it in an accelerate config: `distributed_type: DEEPSPEED`, "
            f"`num_processes: 8` and `deepspeed_config: {{deepspeed_config_file: {path}}}`"
        )
    if mapping.get("distributed_type") is None:
        raise UserError(
            f"{path} has no key `distributed_type`, so it is not a file that `accelerate config` wrote. "
            "Such a file begins with `compute_environment: LOCAL_MACHINE`"
        )


def _keys_of(mapping: Mapping[str, Any]) -> ConfigKeys:
    """The keys with those of sections as `section.key`, each under the full name that accelerate gives it."""
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    problems = []
    for name, value in mapping.items():
        if name not in _SECTIONS or not value:
            values[str(name)] = value
        elif not isinstance(value, dict):
            problems.append(f"{name}: should be a section with keys and values")
        else:
            prefix = _SECTIONS[name]
            for key, inner in value.items():
                full = f"{name}.{key}" if str(key).startswith(prefix) else f"{name}.{prefix}_{key}"
                if full in values:
                    problems.append(f"{name}.{key}: it is there twice, once as {names.get(full, full)}")
                values[full] = inner
                names[full] = f"{name}.{key}"
    keys = ConfigKeys(values, names)
    keys.problems += problems
    return keys


def _json_keys(path: Path, keys: ConfigKeys) -> ConfigKeys | None:
    """The keys of the DeepSpeed JSON file that the config names, if it does."""
    asked = keys.get(FILE_KEY)
    if asked is None or str(asked).lower() == "none":
        return None
    named = Path(str(asked)).expanduser()
    # accelerate looks in the folder where it is started; a config is mostly copied with its JSON file.
    file = next((place for place in (path.parent / named, named) if place.exists()), None)
    if file is None:
        keys.problems.append(f"{keys.name(FILE_KEY)}: {named} does not exist, also not beside {path.name}")
        return None
    try:
        mapping = read_json(file, MOST_JSON_BYTES)
    except (OSError, ValueError) as error:
        keys.problems.append(f"{keys.name(FILE_KEY)}: {named} cannot be read as JSON: {error}")
        return None
    if not isinstance(mapping, dict):
        keys.problems.append(f"{keys.name(FILE_KEY)}: {named} should hold a JSON object")
        return None
    values = dict(_flat(mapping))
    return ConfigKeys(values, {key: f"{file.name}: {key}" for key in values})


def _flat(mapping: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _translate_engine(keys: ConfigKeys, json_keys: ConfigKeys | None, cluster: Cluster, draft: Draft) -> None:
    if cluster.kind == "FSDP":
        from_fsdp(keys, cluster, draft)
    elif cluster.kind == "DEEPSPEED":
        from_deepspeed(keys, json_keys, cluster, draft)
    elif cluster.kind == "MEGATRON_LM":
        from_megatron(keys, cluster, draft)
    elif cluster.kind == "TP":
        text = share(draft, cluster, "full")
        keys.answer("distributed_type", "not supported", f"tensor parallelism is not supported. Nearest: {text}")
    else:
        text = share(draft, cluster, "none")
        keys.answer("distributed_type", "translated", text)
    if cluster.kind != "FSDP":
        read_replicas(keys, cluster, draft)


def _unused(keys: ConfigKeys, kind: str) -> Iterator[tuple[str, str]]:
    """Sections that accelerate does not read either."""
    for section, user in (("fsdp", "FSDP"), ("deepspeed", "DEEPSPEED"), ("megatron_lm", "MEGATRON_LM")):
        if kind != user:
            yield f"{section}_config.", f"accelerate uses it with distributed_type {user} only"
    if keys.get("mixed_precision") != "fp8":
        yield "fp8_config.", "accelerate uses it with mixed_precision fp8 only"
